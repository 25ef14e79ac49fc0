from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.host.mounts.mounts import (
    WORDS,
    AccessTimes,
    MountOptions,
    UnknownMountOption,
    parse_mount_options,
)

options = st.builds(
    MountOptions,
    read_only=st.booleans(),
    no_exec=st.booleans(),
    no_symlinks=st.booleans(),
    access_times=st.sampled_from([None, *AccessTimes]),
    no_folder_access_times=st.booleans(),
)


def test_setuid_programs_and_devices_never_work_in_a_bind_of_ours():
    bare = parse_mount_options([])

    assert bare == MountOptions(no_suid=True, no_devices=True)
    assert bare.to_set() == 0x2 | 0x4
    assert bare.to_clear() == 0


@pytest.mark.parametrize("word", ["suid", "dev", "exec", "bind", "RO", "ro,nosuid", "", "size=1G", "x" * 99])
def test_an_unknown_option_is_refused_by_name(word: str):
    with pytest.raises(UnknownMountOption, match="There are: ro, rw, nosuid"):
        parse_mount_options([word])


def test_words_become_the_kernels_bits():
    chosen = parse_mount_options(["ro", "noexec", "nosymfollow", "noatime", "nodiratime"])

    assert chosen.to_set() == 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x80 | 0x200000
    assert chosen.to_clear() == 0x70


@given(st.lists(st.sampled_from(sorted(WORDS))))
def test_read_only_is_never_lost_to_a_later_word(words: list[str]):
    assert parse_mount_options(words).read_only == ("ro" in words)
    assert parse_mount_options(words, MountOptions(read_only=True)).read_only


def test_the_later_of_two_choices_of_access_times_wins():
    assert parse_mount_options(["noatime", "relatime"]).access_times is AccessTimes.RELATIVE


@given(options)
def test_options_survive_being_written_as_words(chosen: MountOptions):
    assert parse_mount_options(chosen.words()) == chosen


@given(options)
def test_a_mount_fulfils_what_it_was_made_with(chosen: MountOptions):
    assert chosen.fulfil(chosen)


@given(options, options)
def test_a_mount_fulfils_nothing_it_does_not_restrict(found: MountOptions, asked: MountOptions):
    if found.fulfil(asked):
        assert asked.no_exec <= found.no_exec
        assert asked.no_symlinks <= found.no_symlinks
        assert asked.read_only == found.read_only


def test_what_statvfs_says_is_read_by_its_own_bits():
    assert MountOptions.from_statvfs(0x1 | 0x8 | 0x400 | 0x2000) == MountOptions(
        read_only=True, no_suid=False, no_devices=False, no_exec=True, no_symlinks=True, access_times=AccessTimes.NEVER
    )
    assert MountOptions.from_statvfs(0x1000).access_times is AccessTimes.RELATIVE
    assert MountOptions.from_statvfs(0).access_times is AccessTimes.ALWAYS
