import pytest
from tidegate_crds.errors import ManifestError
from tidegate_crds.router_spec import PluginRefSpec, PluginSpec, SchedulingProfileSpec, SchedulingSpec
from tidegate_router.scheduling.plugins.active_request_scorer import ActiveRequestScorer
from tidegate_router.scheduling.plugins.max_score_picker import MaxScorePicker
from tidegate_router.scheduling.plugins.model_filter import ModelFilter
from tidegate_router.scheduling.plugins.prefix_cache_scorer import PrefixCacheScorer
from tidegate_router.scheduling.plugins.queue_scorer import QueueScorer
from tidegate_router.scheduling.plugins.ready_filter import ReadyFilter
from tidegate_router.scheduling.profile import build_profile


def spec_of(*references: tuple[str, float], plugins: tuple[PluginSpec, ...] = ()) -> SchedulingSpec:
    refs = tuple(PluginRefSpec(plugin_ref=name, weight=weight) for name, weight in references)
    return SchedulingSpec(plugins=plugins, profiles=(SchedulingProfileSpec(name="default", plugins=refs),))


def test_default_profile_has_every_built_in() -> None:
    profile = build_profile(SchedulingSpec())
    assert [type(each) for each in profile.filters] == [ReadyFilter, ModelFilter]
    assert [type(each) for each, _ in profile.scorers] == [PrefixCacheScorer, ActiveRequestScorer, QueueScorer]
    assert isinstance(profile.picker, MaxScorePicker)


def test_profile_by_type_or_name_with_weights_and_parameters() -> None:
    tolerant = PluginSpec(type="prefix-cache-scorer", name="tolerant", parameters={"slackRequests": 40})
    profile = build_profile(
        spec_of(
            ("ready-filter", 1), ("tolerant", 3), ("queue-scorer", 0), ("max-score-picker", 1), plugins=(tolerant,)
        ),
    )
    assert [type(each) for each in profile.filters] == [ReadyFilter, ModelFilter]
    ((scorer, weight),) = profile.scorers
    assert isinstance(scorer, PrefixCacheScorer)
    assert weight == 3
    assert scorer._slack == 40


def test_plugin_parameters_reach_the_default_profile() -> None:
    profile = build_profile(
        SchedulingSpec(plugins=(PluginSpec(type="queue-scorer", parameters={"longQueueRequests": 3}),)),
    )
    assert [each._long_queue for each, _ in profile.scorers if isinstance(each, QueueScorer)] == [3]


@pytest.mark.parametrize(
    ("spec", "path", "says"),
    [
        (
            SchedulingSpec(plugins=(PluginSpec(type="queue-scoer"),)),
            "scheduling.plugins[0].type",
            'did you mean "queue-scorer"?',
        ),
        (SchedulingSpec(plugins=(PluginSpec(type="magic-scorer"),)), "scheduling.plugins[0].type", "known types: "),
        (
            SchedulingSpec(plugins=(PluginSpec(type="queue-scorer", parameters={"longQueueRequest": 3}),)),
            "scheduling.plugins[0].parameters.longQueueRequest",
            "longQueueRequests",
        ),
        (
            SchedulingSpec(plugins=(PluginSpec(type="queue-scorer", parameters={"longQueueRequests": 0}),)),
            "scheduling.plugins[0].parameters.longQueueRequests",
            "1",
        ),
        (spec_of(("max-score-piker", 1)), "scheduling.profiles[0].plugins[0].pluginRef", '"max-score-picker"'),
        (
            spec_of(("max-score-picker", 1), ("max-score-picker", 1)),
            "scheduling.profiles[0].plugins[1].pluginRef",
            "one picker",
        ),
        (
            SchedulingSpec(profiles=spec_of(("queue-scorer", 1)).profiles * 2),
            "scheduling.profiles",
            "expected one profile, got 2",
        ),
    ],
)
def test_errors_name_the_path_and_the_way_out(spec: SchedulingSpec, path: str, says: str) -> None:
    with pytest.raises(ManifestError) as caught:
        build_profile(spec)
    (error,) = caught.value.errors
    assert error.path == path
    assert says in error.message


def test_all_errors_are_told_at_once() -> None:
    spec = spec_of(("a-scorer", 1), ("b-scorer", 1), plugins=(PluginSpec(type="c-scorer"),))
    with pytest.raises(ManifestError) as caught:
        build_profile(spec, "spec.router.scheduling")
    assert len(caught.value.errors) == 3
    assert all(error.path.startswith("spec.router.scheduling.") for error in caught.value.errors)
