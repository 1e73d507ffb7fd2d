"""Export of models to ONNX, OpenVINO and torch.export files, each compared with PyTorch in its runtime."""
