"""The hub `pettingzoo`, compared with the library (1.27.0): rewards, illegal actions, copies, players that change."""

import random
from collections import Counter

import pytest
from played import played

pytest.importorskip("pettingzoo")
pytest.importorskip("pygame")

from pettingzoo import AECEnv

from verl_mas.environment.worlds import Setup
from verl_mas.environment.worlds.hubs.pettingzoo import PettingZoo, opened, player_of
from verl_mas.errors import ConfigError
from verl_mas.workflow import Task
from verl_mas.workflows.world import WorldTeam

WORLDS = {
    "classic/tictactoe_v3": 9,
    "classic/connect_four": 7,
    "classic/rps-v2": 3,
    "toy_zoo:Changing": 5,
    "toy_zoo:Signals": 3,
}
OPTIONS = {"classic/rps-v2": {"max_cycles": 4}}


def setup(name, seed=0, **options):
    return Setup(name, seed, options or OPTIONS.get(name, {}))


def begun(name, seed=0, **options):
    world = PettingZoo(setup(name, seed, **options))
    return world, world.start()


def ours(name, seed, draw):
    world, view = begun(name, seed)
    while view.observations:
        view = world.step({player: str(draw(player, seen.legal)) for player, seen in view.observations.items()})
    return view


def own(name, seed, draw):
    """Sum the rewards of each player, with the loops of the library's documentation."""
    env, earned = opened(setup(name, seed)).env, Counter()
    if not isinstance(env, AECEnv):
        env.reset(seed=seed)
        while env.agents:
            actions = {agent: draw(agent, actions_in(env, agent)) for agent in env.agents}
            earned.update(env.step(actions)[1])
        return earned
    env.reset(seed=seed)
    for agent in env.agent_iter():
        observation, reward, termination, truncation, _ = env.last()
        earned[player_of(agent)] += reward
        mask = observation.get("action_mask") if isinstance(observation, dict) else None
        env.step(None if termination or truncation else draw(agent, actions_in(env, agent, mask)))
    return earned


def actions_in(env, agent, mask=None):
    space = env.action_space(agent)
    return [int(space.start + number) for number in range(space.n) if mask is None or mask[number]]


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("illegal", [0.0, 0.1])
def test_a_session_earns_what_the_library_counts_and_has_exact_copies(name, illegal):
    assert name == "toy_zoo:Signals" or PettingZoo.fixed(setup(name)) is None
    for seed in range(10):
        rngs = random.Random(seed), random.Random(seed)

        def drawn(rng):
            any_action = range(WORLDS[name]) if name.startswith("classic") else range(1, 3)
            return lambda _, legal: rng.choice(list(any_action) if rng.random() < illegal else list(legal))

        view = ours(name, seed, drawn(rngs[0]))
        expected = own(name, seed, drawn(rngs[1]))
        assert view.rewards == {player: expected[player] for player in view.rewards} and not view.observations


@pytest.mark.parametrize("action", ["0", "nine", None])
def test_an_action_that_is_illegal_or_no_action_loses_as_the_wrapper_has_it(action):
    world, view = begun("classic/tictactoe_v3")
    view = world.step({"player_1": "0"})
    assert view.observations["player_2"].legal == [*"12345678"]
    view = world.step({"player_2": action})
    assert not view.observations and view.rewards == {"player_1": 0, "player_2": -1}
    assert view.illegal == {"player_1": 0, "player_2": 1}


@pytest.mark.parametrize(("options", "reward"), [({}, -1), ({"illegal_reward": -0.5}, -0.5)])
def test_without_a_wrapper_an_unread_action_ends_the_episode_at_the_price_of_the_option(options, reward):
    world, _ = begun("toy_zoo:Once", space="words", **options)
    view = world.step({"alone": "nine"})
    assert (view.rewards, view.illegal, view.observations) == ({"alone": reward}, {"alone": 1}, {})
    world, _ = begun("toy_zoo:Once", space="words", **options)
    assert world.step({"alone": "cab"}).rewards == {"alone": 2.5}


def test_players_die_and_appear_and_have_names_of_agents():
    world, view = begun("toy_zoo:Changing")
    order = []
    while view.observations:
        order += view.observations
        view = world.step(dict.fromkeys(view.observations, "1"))
    assert world.players(world.setup) == ["a_b", "agent_3", "late"]
    assert order == ["a_b", "agent_3", "a_b", "late", "late", "a_b"]


def test_a_copy_has_new_random_events():
    world, _ = begun("toy_zoo:Changing")

    def reward(seed):
        twin = world.copy()
        twin.reseed(seed)
        return twin.step({"a_b": "1"}).rewards["a_b"]

    assert [reward(5), reward(5)] == [reward(5)] * 2 and len({reward(seed) for seed in range(20)}) > 3


@pytest.mark.parametrize(
    ("draws", "reason"), [("global", "takes another step"), ("locked", "has no copies: TypeError")]
)
def test_an_environment_without_exact_copies_says_why(draws, reason):
    assert reason in PettingZoo.fixed(setup("toy_zoo:Changing", draws=draws))


@pytest.mark.parametrize(
    ("observes", "content", "compact"),
    [
        ("text", "look", "look"),
        ("named", "read", "read"),
        ("grid", "You are alone.\n1 0\n0 2", "1 0 0 2"),
        ("planes", "You are alone.\n1 0\n2 0", "1 0 2 0"),
        ("parts", "You are alone.\nplace:\n0.5 2\ntime:\n3", "place: 0.5 2 time: 3"),
    ],
)
def test_observations_are_texts(observes, content, compact):
    world = PettingZoo(Setup("toy_zoo:Once", options={"observes": observes}))
    (seen,) = world.start().observations.values()
    assert seen.content == content and seen.legal == (["1"] if observes == "named" else ["0", "1"])
    (seen,) = PettingZoo(Setup("toy_zoo:Once", 0, {"observes": observes}, True)).start().observations.values()
    assert seen.content == compact


def test_a_picture_is_a_part_and_a_function_of_the_user_describes_anything():
    _, view = begun("toy_zoo:Once", observes="picture")
    picture, text = view.observations["alone"].content
    assert picture["image"].size == (6, 4) and picture["image"].getpixel((0, 0)) == (7, 7, 7)
    assert text == {"type": "text", "text": "You are alone."}
    _, view = begun("toy_zoo:Once", observes="huge", describe="toy_zoo:described", actions=["no", "yes"])
    seen = view.observations["alone"]
    assert seen.content == "alone sees ndarray" and seen.legal == ["no", "yes"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("classic/tictacto", {}, r"(?s)world=pettingzoo/classic/tictacto\n.*did you mean 'classic/tictactoe-v3'"),
        ("classic/rps_v2", {"colour": 1}, "unexpected keyword argument 'colour'"),
        ("toy_zoo:nothing", {}, "toy_zoo:nothing is a object"),
        ("toy_zoo:Once", {"space": "many"}, r"actions MultiDiscrete\(\[2 2\]\)"),
        ("toy_zoo:Once", {"actions": ["yes", "Yes"]}, "each of 2 actions has its own name"),
        ("toy_zoo:Once", {"agents": 0}, r"possible_agents=\[\]"),
        ("toy_zoo:Once", {"observes": "huge"}, "an observation of 2500 values of type float64"),
        ("toy_zoo:Once", {"observes": "objects"}, "an observation of 1 values of type object"),
    ],
)
def test_an_environment_that_cannot_be_played_is_refused_before_the_run(name, options, message):
    with pytest.raises(ConfigError, match=message):
        assert PettingZoo.players(setup(name, **options)) and PettingZoo.fixed(setup(name, **options))


def test_a_session_prompts_its_players_and_rewards_each():
    script = {"scout": "<action>2</action>", "runner": "<action>2</action>"}
    session, prompts = played(WorldTeam(world="pettingzoo/toy_zoo:Signals"), Task.of("play"), script)
    assert [prompt.splitlines()[:3] for prompt in prompts] == [
        ["colour 2", "", "Legal actions: 0, 1, 2"],
        ["signal 2", "", "Legal actions: 0, 1, 2"],
    ]
    assert [reply.team_reward for reply in session.replies] == [1.0, 1.0] and session.info["illegal_scout"] == 0
