#!/usr/bin/env bash
# Checks what a release consists of, with tools in an environment of their own, build/release-checks.
#
#   scripts/release_checks.sh workflows   .github and CITATION.cff: schemas, expressions, shell lines, security
#   scripts/release_checks.sh wheel       the wheel of dist/: libraries, symbols of the stable ABI
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
environment=$root/build/release-checks
list=requirements/locked/release.txt
stamp=$environment/installed

if ! cmp -s "$list" "$stamp"; then
  rm -rf "$environment"
  "${PYTHON:-python3}" -m venv "$environment"
  "$environment/bin/python" -m pip install -q --disable-pip-version-check --no-input \
    --require-hashes -r "$list"
  cp "$list" "$stamp"
fi
export PATH=$environment/bin:$PATH

schema() { # schema NAME FILE...
  check-jsonschema -q --builtin-schema "vendor.$1" "${@:2}"
}

case "${1:-}" in
  workflows)
    actionlint
    zizmor -q --offline .github
    forms=()
    for form in .github/ISSUE_TEMPLATE/*.yml; do
      [[ $form == */config.yml ]] || forms+=("$form")
    done
    schema github-workflows .github/workflows/*.yml
    schema github-issue-forms "${forms[@]}"
    schema github-issue-config .github/ISSUE_TEMPLATE/config.yml
    schema dependabot .github/dependabot.yml
    schema citation-file-format CITATION.cff
    echo "workflows: ok"
    ;;
  wheel)
    wheels=(dist/onnxgrad-*.whl)
    [[ -f ${wheels[0]} ]] || { echo "wheel: dist/ has none; run make wheel" >&2; exit 1; }
    for wheel in "${wheels[@]}"; do
      auditwheel show "$wheel"
      abi3audit --strict --verbose "$wheel"
    done
    ;;
  *)
    sed -n '2,/^set /p' "${BASH_SOURCE[0]}" | sed '$d' >&2
    exit 2
    ;;
esac
