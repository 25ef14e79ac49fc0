"""A dry run goes through all checks and stores nothing."""

from __future__ import annotations

from orlop.kube import kinds
from support.api.api_objects import claim, config_map, finalized, named
from support.api.api_under_test import Api


async def test_a_dry_creation_answers_as_if_and_stores_nothing(api: Api):
    answer = await api.create(kinds.CONFIG_MAP, config_map(a="1"), dryRun="All")

    assert answer.status == 201
    assert answer.json["metadata"]["uid"]
    assert "resourceVersion" not in answer.json["metadata"]
    assert (await api.get(kinds.CONFIG_MAP, "c")).status == 404


async def test_a_dry_creation_sees_defaults(api: Api):
    answer = await api.create(kinds.PERSISTENT_VOLUME_CLAIM, claim(), dryRun="All")

    assert answer.made["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]


async def test_a_dry_creation_is_refused_where_a_real_one_were(api: Api):
    await api.make(kinds.CONFIG_MAP, config_map())

    assert (await api.create(kinds.CONFIG_MAP, config_map(), dryRun="All")).status == 409
    wrong = await api.create(kinds.CONFIG_MAP, named("Wrong"), dryRun="All")
    wrong.is_invalid(("FieldValueInvalid", "metadata.name"))


async def test_dry_changes_answer_as_if_and_change_nothing(api: Api):
    made = await api.make(kinds.CONFIG_MAP, config_map(a="1"))
    patched = await api.patch(kinds.CONFIG_MAP, "c", {"data": {"a": "2"}}, dryRun="All")
    replaced = await api.put(kinds.CONFIG_MAP, {**made, "data": {"a": "3"}}, dryRun="All")

    assert (patched.made["data"], replaced.made["data"]) == ({"a": "2"}, {"a": "3"})
    assert patched.made["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    assert await api.read(kinds.CONFIG_MAP, "c") == made


async def test_a_dry_deletion_deletes_nothing(api: Api):
    made = await api.make(kinds.CONFIG_MAP, config_map())
    assert (await api.delete(kinds.CONFIG_MAP, "c", dryRun="All")).json["status"] == "Success"
    assert (await api.delete(kinds.CONFIG_MAP, "c", {"dryRun": ["All"]})).json["status"] == "Success"

    assert await api.read(kinds.CONFIG_MAP, "c") == made


async def test_a_dry_deletion_of_what_has_finalizers_marks_nothing(api: Api):
    made = await api.make(kinds.CONFIG_MAP, finalized(config_map(), "example.com/held"))
    answer = await api.delete(kinds.CONFIG_MAP, "c", dryRun="All")

    assert answer.made["metadata"]["deletionTimestamp"]
    assert await api.read(kinds.CONFIG_MAP, "c") == made


async def test_a_dry_deletion_of_a_collection_deletes_nothing(api: Api):
    await api.make(kinds.LEASE, named("a", spec={}))
    answer = await api.ask("DELETE", api.path(kinds.LEASE), dryRun="All")

    assert [item["metadata"]["name"] for item in answer.made["items"]] == ["a"]
    assert await api.names(kinds.LEASE) == ["a"]


async def test_another_word_than_all_is_invalid(api: Api):
    answer = await api.create(kinds.CONFIG_MAP, config_map(), dryRun="Some")

    answer.is_invalid(("FieldValueNotSupported", "dryRun"))
    assert answer.json["message"] == (
        'CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["Some"]: supported values: "All"'
    )


async def test_each_verb_names_its_own_options(api: Api):
    made = await api.make(kinds.CONFIG_MAP, config_map())
    answers = {
        "PatchOptions": await api.patch(kinds.CONFIG_MAP, "c", {}, dryRun="Some"),
        "UpdateOptions": await api.put(kinds.CONFIG_MAP, made, dryRun="Some"),
        "DeleteOptions": await api.delete(kinds.CONFIG_MAP, "c", dryRun="Some"),
    }

    for kind, answer in answers.items():
        answer.is_invalid(("FieldValueNotSupported", "dryRun"))
        assert answer.json["message"].startswith(f'{kind}.meta.k8s.io "" is invalid: dryRun: ')


async def test_an_unknown_validation_is_invalid(api: Api):
    answer = await api.create(kinds.CONFIG_MAP, config_map(), fieldValidation="Fancy")

    answer.is_invalid(("FieldValueNotSupported", "fieldValidation"))
