#!/usr/bin/env bash
# Sets up and builds the documentation's site into site/, which is read by opening site/index.html, without a network.
# A broken link or a name that is not there ends it. Flags go to `mkdocs build`.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" docs
export NO_MKDOCS_2_WARNING=1 # an advertisement
python -m mkdocs build --quiet "$@"
echo "documentation: $root/site/index.html"
