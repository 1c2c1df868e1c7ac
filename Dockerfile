# rl4dialog for the CPU. `docker build . -t rl4dialog`; docker/README.md says what it does and how it is run.
# What differs between machines is an argument, so that the same file builds with another base or another package index.
ARG BASE_IMAGE=python:3.11.14-slim-bookworm

# Python packages, exactly those of the lock. A private index is given as a secret, which no layer keeps.
FROM ${BASE_IMAGE} AS dependencies
ARG TORCH_WHEELS=https://download.pytorch.org/whl/cpu/torch/
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN apt-get update \
    && apt-get install --yes --no-install-recommends binutils=2.40-* \
    && rm -rf /var/lib/apt/lists/*
COPY docker/requirements.lock docker/install.sh /build/
RUN --mount=type=secret,id=pip_conf,target=/run/secrets/pip.conf \
    sh /build/install.sh /build/requirements.lock --find-links "$TORCH_WHEELS"
COPY setup.py README.md /app/
COPY rl4dialog/__init__.py /app/rl4dialog/
RUN pip install --no-deps --no-build-isolation --no-index --editable /app

# WordNet as nltk expects it; Debian leaves out lexnames, the names of the lexicographers' files.
FROM ${BASE_IMAGE} AS wordnet
RUN apt-get update \
    && apt-get install --yes --no-install-recommends wordnet-base=1:3.0-* wordnet-sense-index=1:3.0-* \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /nltk_data/corpora/wordnet
RUN cp /usr/share/wordnet/data.* /usr/share/wordnet/index.* /usr/share/wordnet/*.exc /usr/share/wordnet/cntlist.rev . \
    && cp /usr/share/doc/wordnet-base/copyright LICENSE
COPY docker/lexnames .
RUN chmod -R a+rX /nltk_data

# The program: readable by whoever runs it, written by nobody.
FROM dependencies AS program
COPY . /app
RUN sh /app/docker/compile.sh && chmod -R a+rX,go-w /app

# All but packages and program; docker/Dockerfile.cuda begins here too.
FROM ${BASE_IMAGE} AS base
RUN useradd --uid 1000 --user-group --no-create-home --home-dir /cache rl4dialog \
    && install -d -o rl4dialog -g rl4dialog -m 1777 /runs /cache
COPY --from=wordnet /nltk_data /usr/share/nltk_data
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/cache \
    USER=rl4dialog \
    XDG_CACHE_HOME=/cache \
    HF_HOME=/cache/huggingface \
    MPLCONFIGDIR=/cache/matplotlib \
    HF_HUB_OFFLINE=1 \
    HF_DATASETS_OFFLINE=1 \
    HF_EVALUATE_OFFLINE=1 \
    HF_HUB_DISABLE_TELEMETRY=1 \
    WANDB_MODE=offline
VOLUME ["/runs", "/cache"]
WORKDIR /app
# The entry point gives up root's rights before anything else runs, whatever the owner of /runs is.
ENTRYPOINT ["python", "/app/docker/entrypoint.py"]
CMD ["--help"]

FROM base
COPY --from=program /opt/venv /opt/venv
COPY --from=program /app /app
