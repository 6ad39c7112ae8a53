from torchvision import transforms
from torchvision.datasets import ImageFolder


class Indexed(ImageFolder):
    def __getitem__(self, index):
        return (index, *super().__getitem__(index))


class Crops:
    def __init__(self, pipelines):
        self.pipelines = pipelines

    def __call__(self, image):
        return [pipeline(image) for pipeline, count in self.pipelines for _ in range(count)]


def build_transform_pipeline(dataset, cfg):
    crop = transforms.RandomResizedCrop(cfg.crop_size, scale=(cfg.rrc.crop_min_scale, cfg.rrc.crop_max_scale))
    normalise = transforms.Normalize(cfg.get("mean", (0.485, 0.456, 0.406)), cfg.get("std", (0.229, 0.224, 0.225)))
    return transforms.Compose([crop, transforms.ToTensor(), normalise])
