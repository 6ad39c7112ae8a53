"""Pipelines that are built for the GPU of a number, as the original's."""

from nvidia.dali import fn, pipeline_def


class NormalPipelineBuilder:
    def __init__(self, data_path, batch_size, device):
        self.data_path = data_path

    @pipeline_def
    def pipeline(self):
        files, labels = fn.readers.file(file_root=self.data_path)
        return files, labels


class PretrainPipelineBuilder(NormalPipelineBuilder):
    pass
