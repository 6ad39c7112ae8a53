from torchvision import transforms


def prepare_transforms(dataset):
    small = transforms.Compose([transforms.Resize(32), transforms.ToTensor()])
    return small, small
