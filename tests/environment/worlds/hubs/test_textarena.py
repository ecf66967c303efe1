"""Episodes of TextArena equal those of the library, even concurrent episodes. Games that it cannot make are refused."""

import asyncio
import json
import random
import subprocess
import sys

import pytest
import textarena_episodes
from played import played
from textarena_episodes import EPISODES, STEPS, action

from verl_mas.environment.worlds import Setup
from verl_mas.environment.worlds.hosts import Pool
from verl_mas.environment.worlds.world import find
from verl_mas.errors import ConfigError, SessionFault
from verl_mas.workflow import Task
from verl_mas.workflows.world import WorldTeam

textarena = pytest.importorskip("textarena")
CHESS = pytest.mark.skipif(sys.version_info >= (3, 12), reason="its syntax is that of Python 3.12")


def world(name, seed=0, compact=False, **options):
    return find(f"textarena/{name}")[1](Setup(name, seed, options, compact))


def after(episode, *actions):
    """Return the view after these actions. The player whose turn it is takes each action."""
    view = episode.start()
    for taken in actions:
        view = episode.step({next(iter(view.observations)): taken})
    return view


async def test_concurrent_random_episodes_end_as_in_the_library_alone():
    alone = subprocess.run([sys.executable, textarena_episodes.__file__], capture_output=True, check=True)
    assert await through_hosts() == [
        (steps, rewards and {f"player_{player}": reward for player, reward in rewards.items()})
        for rewards, steps in json.loads(alone.stdout)
    ]


async def through_hosts():
    pool, before = Pool(), random.getstate()

    async def episode(name, seed):
        rng, steps = random.Random(f"{name} {seed}"), 0
        async with pool.stage(f"textarena/{name}", "thread", 60.0) as stages:
            place = await stages.open(Setup(name, seed))
            while place.view.observations and steps < STEPS:
                ((player, seen),) = place.view.observations.items()
                place = await stages.step(place, {player: action(rng, seen.content)})
                steps += 1
        return steps, None if place.view.observations else place.view.rewards

    ends = await asyncio.gather(*(episode(name, seed) for name, seed in EPISODES))
    assert random.getstate() == before
    return ends


@pytest.mark.parametrize(
    ("name", "options", "number"),
    [("2048-v0", {}, 1), ("PublicGoodsGame-v0", {}, 3), ("SecretMafia-v0", {}, 6), ("Snake-v0", {"num_players": 4}, 4)],
)
def test_a_game_has_the_players_with_which_it_begins(name, options, number):
    workflow = WorldTeam(world=f"textarena/{name}", options=options)
    assert list(workflow.agents) == [f"player_{player}" for player in range(number)] and workflow.branches


@pytest.mark.parametrize("refused", ["[9]", None])
def test_the_game_forgives_an_error_once_and_both_are_counted(refused):
    episode = world("TicTacToe-v0")
    view = after(episode, refused)
    assert "attempted an invalid move" in view.observations["player_0"].news and view.illegal["player_0"] == 1
    view = episode.step({"player_0": refused})
    assert view.rewards == {"player_0": -1, "player_1": 1} and not view.observations
    assert view.illegal == {"player_0": 2, "player_1": 0}


@pytest.mark.parametrize("name", ["Countdown-v0", "ThreeCardMonte-v0"])
def test_a_game_that_exchanges_reason_and_reward_has_a_number_as_its_penalty(name):
    env = textarena.make(name)
    env.reset(num_players=1, seed=0)
    assert any(env.step("?")[0] for _ in range(2)) and isinstance(env.close()[0][0], str)
    view = after(world(name), "?", "?")
    assert 0 <= view.rewards["player_0"] < 1 and not view.observations and view.illegal["player_0"] == 2


def test_a_game_whose_players_are_all_out_ends_with_a_draw():
    episode = world("PublicGoodsGame-v0")
    view = episode.start()
    while view.observations and sum(view.illegal.values()) < 10:
        # A player that is out keeps the turn until its action is valid.
        view = episode.step({player: "[5]" if view.illegal[player] == 3 else "?" for player in view.observations})
    assert not view.observations and set(view.rewards.values()) == {0.0}


@pytest.mark.parametrize("name", ["PigDice-v0", "SecretMafia-v0"])
def test_a_copy_has_the_chance_of_the_original_and_a_reseeded_one_does_not_change_it(name):
    def rest(episode, view, number):
        rng, views = random.Random(number), []
        while view.observations and len(views) < 30:
            ((player, seen),) = view.observations.items()
            taken = rng.choice(["[roll]", "[hold]"]) if name == "PigDice-v0" else action(rng, seen.content)
            views.append(view := episode.step({player: taken}))
        return views

    episode = world(name, seed=1)
    view = episode.start()
    first, second, reseeded = (episode.copy() for _ in range(3))
    reseeded.reseed(5)
    other = rest(reseeded, view, 1)
    same = rest(first, view, 1)
    assert same == rest(second, view, 1) == rest(episode, view, 1)
    assert name != "PigDice-v0" or other != same


def test_candidates_continue_in_copies_and_a_random_player_takes_listed_moves():
    workflow = WorldTeam(world="textarena/TicTacToe-v0", opponent="random", continuations=1)
    session, prompts = played(workflow, Task.of("play"), lambda request, branch: f"[{branch + request.turn}]", k=3)
    assert session.answer.startswith("textarena/TicTacToe-v0: player_0") and session.info["illegal_player_1"] == 0
    assert prompts[0].endswith("Answer with your action, written as the rules ask.")
    unlisted = WorldTeam(world="textarena/IteratedPrisonersDilemma-v0", opponent="random")
    with pytest.raises(SessionFault, match="lists its legal actions"):
        played(unlisted, Task.of("play"), "hello")


def test_points_of_the_game_are_rewards_and_may_be_joint():
    options = {"num_rounds": 1, "points": "scores"}
    talk = ["hi", "hi", "[Defect]", "[Cooperate]"]
    own = after(world("IteratedPrisonersDilemma-v0", **options), *talk)
    joint = after(world("IteratedPrisonersDilemma-v0", **options, joint=True), *talk)
    assert own.rewards == {"player_0": 5, "player_1": 0} and joint.rewards == {"player_0": 2.5, "player_1": 2.5}
    trade = world("SimpleNegotiation-v0", points="inventory_value.change")
    view = after(trade, "[Offer: 1 Wheat -> 1 Ore]", "[Accept]")
    assert view.rewards["player_0"] > 0 > view.rewards["player_1"]


def test_news_leave_out_what_the_player_wrote_itself_and_tiny_models_see_the_last_message():
    talk = "hello", "good day"
    view = after(world("IteratedPrisonersDilemma-v0"), *talk)
    assert view.observations["player_0"].news.splitlines()[:2] == [
        "[Player 1] good day",
        "[GAME] Conversation finished for round 1. Please reply with '[Cooperate]' or '[Defect]'.",
    ]
    compact = after(world("IteratedPrisonersDilemma-v0", compact=True), *talk).observations["player_0"].content
    assert compact.splitlines()[0] == "player_0" and compact.endswith("'[Cooperate]' or '[Defect]'.")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("TicTacTo-v0", {}, r"(?s)one of the \d+ that textarena .*TicTacToe-v0"),
        ("TicTacToe-v0", {"board": 3}, "(?s)TypeError.*'board'.*mas.workflow.args.options"),
        ("TicTacToe-v0", {"num_players": 3}, "(?s)num_players=3.*has to be 2, received 3"),
        ("TicTacToe-v0", {"points": "gold"}, "(?s)points=gold.*choose one of board"),
        ("UsedCarNegotiation-v0", {}, "(?s)FileNotFoundError.*files that its package lacks"),
        ("Debate-v0", {}, "(?s)ImportError: OpenAI package.*install the package|OPENROUTER_API_KEY"),
        ("Hangman-v0", {}, "(?s)LookupError: Resource 'words' not found.*nltk.downloader words"),
        pytest.param("Chess-v0", {}, "(?s)SyntaxError.*Python 3.12", marks=CHESS),
    ],
)
def test_a_world_that_cannot_be_made_is_refused_before_a_run(name, options, message):
    with pytest.raises(ConfigError, match=message):
        _ = WorldTeam(world=f"textarena/{name}", options=options).agents
