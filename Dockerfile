# Two images from one file:
#   lakemark   the pipeline, with Java and every jar it needs (the default)
#   connect    Kafka Connect with Debezium and a converter of Avro, as the local stack runs it
#
#   docker build -t lakemark .
#   docker build -t lakemark-connect --target connect .

FROM python:3.12-slim-bookworm AS base
RUN apt-get update \
 && apt-get install --yes --no-install-recommends openjdk-17-jre-headless tini \
 && rm -rf /var/lib/apt/lists/*
ENV LAKEMARK_CACHE=/opt/lakemark/cache \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1
WORKDIR /opt/lakemark
# The packages change seldom, the sources often: two layers.
COPY requirements.lock ./
RUN python -m venv venv && venv/bin/pip install --require-hashes -r requirements.lock
ENV PATH=/opt/lakemark/venv/bin:$PATH

# --- Debezium and the converter of Avro, fetched and checked as on a developer's machine ---------
FROM base AS plugins
COPY pyproject.toml README.md LICENSE ./
COPY processor processor
COPY stack stack
RUN pip install --no-deps --no-build-isolation -e . \
 && python -c "import shutil; from stack.connect import debezium_plugins; [shutil.copytree(debezium_plugins(name), '/plugins', dirs_exist_ok=True) for name in ('postgres', 'mariadb', 'avro')]"

FROM apache/kafka:4.3.1 AS connect
COPY --from=plugins /plugins /opt/kafka/plugins
EXPOSE 8083
ENTRYPOINT []
CMD ["/opt/kafka/bin/connect-distributed.sh", "/etc/connect/connect.properties"]

# --- lakemark -----------------------------------------------------------------------------------
FROM base AS lakemark
COPY pyproject.toml README.md LICENSE ./
COPY processor processor
RUN pip install --no-deps --no-build-isolation . \
 && lakemark jars \
 && lakemark warm \
 && chmod -R a+rX cache \
 && useradd --create-home --uid 10001 lakemark \
 && install -d -o lakemark -g lakemark /data
# Spark's workers must be this Python, not another one on the PATH.
ENV PYSPARK_PYTHON=/opt/lakemark/venv/bin/python
USER lakemark
WORKDIR /data
# Spark leaves child processes behind that somebody has to wait for.
ENTRYPOINT ["tini", "--", "lakemark"]
CMD ["run", "-c", "/etc/lakemark/lakemark.yaml"]
