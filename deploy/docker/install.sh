#!/bin/sh
# Makes a virtual environment with CacheFS and what its containers need: hashed wheels alone, and the
# project as a wheel of the sources in the working directory. Leaves no installer in it.
#
#   install.sh DIRECTORY
set -eu
target=${1:?usage: install.sh DIRECTORY}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

pip() {
    "$work/tools/bin/python" -m pip --disable-pip-version-check --no-input --no-cache-dir "$@"
}

python3 -m venv "$work/tools"
pip install -q --no-deps --require-hashes --only-binary :all: -r requirements/build.txt
pip wheel -q --no-deps --no-build-isolation --wheel-dir "$work/wheels" .

python3 -m venv --without-pip "$target"
pip --python "$target/bin/python" install -q --no-deps --require-hashes --only-binary :all: \
    -r requirements/image.txt
pip --python "$target/bin/python" install -q --no-deps "$work"/wheels/*.whl
rm -f "$target"/bin/activate* "$target"/bin/Activate*
# Libraries bring tests of their own, which no container runs.
find "$target/lib" -type d -name tests -prune -exec rm -rf {} +
# botocore describes 400 services. CacheFS calls the queue and those that give credentials.
for service in "$target"/lib/python3*/site-packages/botocore/data/*/; do
    case $(basename "$service") in
        s3 | signin | sqs | sso | sso-oidc | sts) ;;
        *) rm -rf "$service" ;;
    esac
done
