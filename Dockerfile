# Loopwright's server and worker. Runs as nobody in particular, with a read-only root: only /data is written to.
#
#   docker build -t loopwright .
#   docker run --read-only --tmpfs /tmp -v loopwright:/data -e DATABASE_URL=… -p 127.0.0.1:8700:8700 loopwright

FROM python:3.11-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY requirements.lock pyproject.toml README.md LICENSE ./
COPY loopwright loopwright
# The versions of the lock, without what only development needs.
RUN sed -e '/--hash=/d' -e 's/ *\\$//' requirements.lock > versions.txt \
 && python -m venv /opt/loopwright \
 && /opt/loopwright/bin/pip install --constraint versions.txt . \
 && /opt/loopwright/bin/python -m compileall -q /opt/loopwright

FROM python:3.11-slim
COPY --from=build /opt/loopwright /opt/loopwright
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin loopwright \
 && install -d -o loopwright -g loopwright -m 700 /data
ENV PATH=/opt/loopwright/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/data \
    LOOPWRIGHT_HOME=/data LOOPWRIGHT_HOST=0.0.0.0
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8700
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8700/api/health/ready', timeout=4)"]
ENTRYPOINT ["loopwright"]
CMD ["serve"]
