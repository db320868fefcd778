#!/usr/bin/env bash
# The wheel: the same bytes when it is made again; what is inside and under which names; installed into an environment of its own, from
# where it judges the kernel of examples/, and names the bug of a wrong one.
# usage: wheel.sh (takes the time of a build where build/release is not there)
set -euo pipefail
unset PYTHONPATH ASSAY_LIBRARY ASSAY_CACHE
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
complain() {
  echo "FAILED: $*" >&2
  exit 1
}

"$root/ci/wheel" "$work/dist"
/usr/bin/python3 "$root/python/wheel_backend.py" "$work/again" >/dev/null
wheel=$(echo "$work"/dist/assay-*-py3-none-manylinux_*_x86_64.whl)
cmp "$wheel" "$work/again/${wheel##*/}" || complain "a second build gives other bytes"
[[ $wheel == *manylinux_2_28_x86_64.whl ]] || complain "another glibc than 2.28 is asked for: ${wheel##*/}"
[ "$(ls "$work/dist")" = "${wheel##*/}" ] || complain "more than the wheel in dist: $(ls "$work/dist")"

/usr/bin/python3 -m venv --system-site-packages "$work/env"
"$work/env/bin/pip" install --quiet --no-index "$wheel"
package=$(cd "$work" && env/bin/python -c 'import assay; print(assay.__path__[0])')
[[ $package == $work/env/* ]] || complain "assay is $package"
(cd "$package" && ldd libassay.so bin/assay libs/*) >"$work/ldd"
! grep -q "not found" "$work/ldd" || complain "$(grep "not found" "$work/ldd")"
outside=$(grep -o '=> /[^ ]*' "$work/ldd" | grep -vE "$package/(\./|bin/\.\./)?libs/" | grep -vE '/(libc|libm|libdl|libpthread)\.so\.[0-9]$' || true)
[ -z "$outside" ] || complain "libraries of the system are taken: $outside"
! ls "$package/libs" | grep -iE 'blas|curl-gnutls' || complain "a library that must not be there"
! nm -D --defined-only "$package/libassay.so" | grep -v ' assay_test_' || complain "other functions than assay_test_*"
(cd "$package" && objdump -pT libassay.so bin/assay libs/*) >"$work/versions" # every one, apart from the code that made the tag
newer=$(grep -oE 'GLIBC_(2\.(29|[3-9][0-9])|[3-9]).*' "$work/versions" || true)
[ -z "$newer" ] || complain "newer than glibc 2.28: $newer"
grep -q GLIBC_2.2.5 "$work/versions" || complain "objdump shows no versions"
licences=$(echo "$package"/../assay-*.dist-info/licenses)
for library in "$package"/libs/*; do
  grep -q "^${library##*/}: " "$licences/NOTICE" || complain "NOTICE has nothing of ${library##*/}"
done

# The same kernel right and wrong, with nothing of this tree in sight.
cp "$root"/python/examples/*.py "$root/python/tests/test_company.py" "$work"
cd "$work"
pytest=(env -i PATH=/usr/bin:/bin HOME="$work" env/bin/python -m pytest -q -p no:cacheprovider)
# The program, on PATH and as a module; what is refused keeps its status.
for assay in "env/bin/assay" "env/bin/python -m assay"; do
  [ "$($assay --version | cut -d' ' -f1)" = assay ] || complain "$assay --version: $($assay --version)"
  $assay generate mlp/silu -o golden.h5 >/dev/null || complain "$assay generate"
  status=0
  $assay show none/such 2>refused || status=$?
  [ $status = 2 ] && grep -q none/such refused || complain "$assay: status $status of what is refused"
done
"${pytest[@]}" test_company.py >company || { cat company; complain "beside PyTorch and h5py"; }
"${pytest[@]}" test_torch_decode.py >decode || { cat decode; complain "decode over a cache"; }
pytest+=(test_torch_moe.py)
"${pytest[@]}" >right || { cat right; complain "a right kernel fails"; }
sed -i 's/weights \* config\["routed_scaling_factor"\] if deepseek else weights/weights/' torch_moe.py
! "${pytest[@]}" -k tiny-sparse --assay-html page.html >wrong || complain "a wrong kernel passes"
grep -q '^FAIL moe/deepseek3-tiny-sparse  known bug scaling_missing: outputs/y' wrong || { cat wrong; complain "the bug is not named"; }
grep -q '<section id="r0"' page.html || complain "no page"
[ -d .cache/assay ] || complain "no cache in the user's folder"
echo "wheel: ${wheel##*/}, $(tail -1 right)"
