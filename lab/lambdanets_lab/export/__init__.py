"""Export of models to ONNX, OpenVINO and torch.export files, and to folders of timm, each loaded and compared."""
