#!/bin/bash
# Fetches what guests need and makes their initial disk: build.sh DIRECTORY [siw], and $init is process 1 of that disk.
# DIRECTORY gets kernel/ (Debian's, unpacked) and lab.img, which has modules of that kernel and was made from lab/; with `siw` also the module of soft-iWARP, which Debian's kernel
# leaves out: it is built from the kernel's own source and headers.
set -euo pipefail
dir=$1 siw=${2:-}
export DEBIAN_FRONTEND=noninteractive
boot_modules='virtio_pci virtio_net 9p 9pnet_virtio overlay'

fail() { echo "$*" >&2; exit 1; }

# Installs the packages of those that are missing.
packages() {
    local missing=()
    for package; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    [ "$(id -u)" = 0 ] || fail "these packages are missing, and only root can install them: run \`apt-get install ${missing[*]}\`"
    apt-get update -qq >/dev/null
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Fetches a package, of a version if one is given, into debs/ and prints its file.
fetch() {
    local files="$dir/debs/$1_${2:-}"
    mkdir -p "$dir/debs"
    ls "$files"*.deb >/dev/null 2>&1 || (cd "$dir/debs" && apt-get download "$1${2:+=$2}" >/dev/null)
    ls "$files"*.deb | head -n 1
}

for tool in apt-get dpkg-deb dpkg-query; do
    command -v $tool >/dev/null || fail "there is no $tool here: guests run Debian's kernel, which comes as a Debian package"
done
packages qemu-system-x86 busybox-static kmod cpio rdma-core ibverbs-providers librdmacm1 iproute2
newest() { apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: linux-image-//p'; }
mkdir -p "$dir"
if [ -z "$(ls "$dir"/kernel/boot/vmlinuz-* 2>/dev/null)" ]; then
    release=$(newest)
    [ -n "$release" ] || { [ "$(id -u)" != 0 ] || apt-get update -qq >/dev/null; release=$(newest); }
    [ -n "$release" ] || fail 'no package linux-image-amd64 is known: run `apt-get update`'
    rm -rf "$dir/kernel.new"
    dpkg-deb -x "$(fetch "linux-image-$release")" "$dir/kernel.new"
    rm -rf "$dir/kernel"
    mv "$dir/kernel.new" "$dir/kernel"
fi
# The one that is here, which may be older than what a package list says today.
release=$(basename "$dir"/kernel/lib/modules/*-amd64)

if [ -n "$siw" ] && [ ! -f "$dir/kernel/lib/modules/siw.ko" ]; then
    packages "linux-headers-$release" make xz-utils binutils
    source=linux-source-$(echo "$release" | cut -d. -f1,2)
    # Debian's signed kernel follows its source by a day or more: the newest source may be too new
    want=$(dpkg-query -W -f '${Version}' "linux-headers-$release")
    deb=$(fetch "$source" "$want")
    have=$(dpkg-deb -f "$deb" Version)
    [ "$have" = "$want" ] || fail "the kernel's source is of version $have and its headers of $want: remove $dir and try again"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    dpkg-deb --fsys-tarfile "$deb" | tar -xO "./usr/src/$source.tar.xz" |
        tar -xJ -C "$work" --strip-components=4 --wildcards '*/drivers/infiniband/sw/siw'
    make -s -C "/usr/src/linux-headers-$release" M="$work/siw" CONFIG_RDMA_SIW=m modules >&2
    strip --strip-debug "$work/siw/siw.ko"
    cp "$work/siw/siw.ko" "$dir/kernel/lib/modules/siw.ko"
fi

depmod -b "$dir/kernel" "$release"
rm -rf "$dir/debs" "$dir/lab"
mkdir -p "$dir/lab/bin" "$dir/lab/mod"
cp "$(command -v busybox)" "$dir/lab/bin/busybox"
for module in $boot_modules; do
    modprobe -d "$dir/kernel" -S "$release" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
done | awk '!seen[$0]++' | while read -r path; do
    cp "$path" "$dir/lab/mod/"
    basename "$path" >> "$dir/lab/mod/order"
done
printf '%s' "$init" > "$dir/lab/init"
chmod 755 "$dir/lab/init"
echo "$release" > "$dir/lab/release"
(cd "$dir/lab" && find . | cpio -o -H newc --quiet) > "$dir/lab.new"
mv "$dir/lab.new" "$dir/lab.img"
