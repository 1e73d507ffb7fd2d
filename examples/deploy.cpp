// Runs a classifier that `lambdanets export --to onnx` wrote, without --dynamic, and prints the index of its class.
// Compile with the headers and the library of ONNX Runtime: g++ -std=c++17 deploy.cpp -lonnxruntime

#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <iostream>
#include <vector>

int main() {
    Ort::Env environment;
    Ort::Session session(environment, "model.onnx", Ort::SessionOptions());
    std::vector<int64_t> shape = session.GetInputTypeInfo(0).GetTensorTypeAndShapeInfo().GetShape();
    int64_t size = 1;
    for (int64_t side : shape) size *= side;
    std::vector<float> images(size);  // preprocessed
    auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    auto input = Ort::Value::CreateTensor<float>(memory, images.data(), images.size(), shape.data(), shape.size());
    const char* inputs[] = {"images"};
    const char* outputs[] = {"logits"};
    auto results = session.Run(Ort::RunOptions(), inputs, &input, 1, outputs, 1);
    const float* logits = results[0].GetTensorData<float>();
    int64_t classes = results[0].GetTensorTypeAndShapeInfo().GetShape()[1];
    std::cout << std::max_element(logits, logits + classes) - logits << "\n";  // index of the class
}
