# docs/commands.md says how to use it. Without a GPU by default; for CUDA: --build-arg TORCH_INDEX=https://pypi.org/simple
FROM python:3.11-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

COPY constraints.txt /build/
# --no-deps, as PyTorch's own index lacks some of the tested versions; the next step installs them.
RUN pip install --no-deps --constraint /build/constraints.txt --index-url "$TORCH_INDEX" torch
COPY . /build
RUN pip install --constraint /build/constraints.txt "/build[plots,tensorboard]"

RUN useradd --create-home --uid 1000 bert && install --directory --owner bert /work
USER bert
WORKDIR /work
ENTRYPOINT ["scratch-bert"]
CMD ["--help"]
