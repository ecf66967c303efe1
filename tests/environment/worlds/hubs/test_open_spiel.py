"""OpenSpiel's games as worlds, compared with the library: results, chance, illegal actions, copies, optimal players."""

import itertools
import random

import pytest
import toy_worlds  # noqa: F401  (registers the hub `toy`)
from played import played

from verl_mas.environment.worlds import Setup
from verl_mas.errors import ConfigError, SessionFault

pyspiel = pytest.importorskip("pyspiel")

from verl_mas.config.hydra.recipe.self_play.exploitability import Exploitability  # noqa: E402
from verl_mas.environment.worlds.hubs.open_spiel import (  # noqa: E402
    OpenSpiel,
    exploitability,
    information_states,
    optimal,
)
from verl_mas.workflow import Task  # noqa: E402
from verl_mas.workflows.world import WorldTeam  # noqa: E402

GAMES = {
    "tic_tac_toe": {},
    "kuhn_poker": {"players": 3},
    "leduc_poker": {},
    "goofspiel": {"num_cards": 4},
    "matrix_pd": {},
    "negotiation": {},
    "tiny_hanabi": {},
    "pig": {"players": 3, "winscore": 15},
    "repeated_game": {"stage_game": {"name": "matrix_rps"}, "num_repetitions": 3},
}


def world(name, seed=0, compact=False, **options):
    return OpenSpiel(Setup(name, seed, options, compact))


def finished(episode, choose, view=None):
    view = view or episode.start()
    while view.observations:
        view = episode.step({player: choose(seen.legal) for player, seen in view.observations.items()})
    return view


def library_returns(name, seed, options, rng):
    """Play the same random actions and chance events with the library alone, and return its result."""
    sampled = {"rng_seed": seed} if name == "negotiation" else {}
    state, chance = pyspiel.load_game(name, options | sampled).new_initial_state(), random.Random(seed)
    while not state.is_terminal():
        if state.is_chance_node():
            actions, chances = zip(*state.chance_outcomes(), strict=True)
            state.apply_action(chance.choices(actions, chances)[0])
        elif state.is_simultaneous_node():
            players = range(state.num_players())
            state.apply_actions([rng.choice(state.legal_actions(player)) for player in players])
        else:
            state.apply_action(rng.choice(state.legal_actions()))
    return state.returns()


@pytest.mark.parametrize("name", GAMES)
def test_random_episodes_end_as_those_of_the_library(name):
    for seed in range(10):
        episode, rng = world(name, seed, seed % 2 == 1, **GAMES[name]), random.Random(seed)
        view = finished(episode, rng.choice)
        expected = library_returns(name, seed, GAMES[name], random.Random(seed))
        assert list(view.rewards.values()) == expected and not any(view.illegal.values())
        assert list(view.rewards) == list(OpenSpiel.players(episode.setup))


def test_what_players_see():
    seen = world("kuhn_poker", 3).start().observations
    assert seen["player_0"].content == "You are player_0 of the game Kuhn Poker.\n\n0"
    assert list(seen) == ["player_0"] and seen["player_0"].legal == ["Pass", "Bet"]
    board = world("tic_tac_toe", compact=True)
    board.start()
    assert board.step({"player_0": "4"}).observations["player_1"].content == "1 . . . . x . . . ."
    assert board.view().observations["player_1"].legal == list("01235678")


def test_every_game_begins_with_a_text_and_with_actions_of_different_names():
    mean_field = pyspiel.GameType.Dynamics.MEAN_FIELD
    kinds = [kind for kind in pyspiel.registered_games() if kind.default_loadable and kind.dynamics != mean_field]
    # `crossword` has no list of actions; `colored_trails` takes seconds to load.
    names = {kind.short_name for kind in kinds} - {"crossword", "colored_trails"}
    assert len(names) > 90
    for name in names:
        for seen in world(name).start().observations.values():
            assert seen.content and len({*seen.legal}) == len(seen.legal) > 0


@pytest.mark.parametrize(
    ("name", "options", "action", "rewards"),
    [
        ("tic_tac_toe", {}, "x(9,9)", [-1, 1]),
        ("kuhn_poker", {"players": 3}, None, [-2, 1, 1]),
        ("tiny_hanabi", {}, "", [0, 0]),
        ("bargaining", {}, "no", [0, 0]),
        ("matrix_rps", {}, {"player_0": "Rock", "player_1": "Well"}, [1, -1]),
        ("matrix_rps", {}, "Well", [-1, -1]),
    ],
)
def test_an_illegal_action_forfeits_the_game(name, options, action, rewards):
    episode = world(name, **options)
    acting = episode.start().observations
    end = episode.step(action if isinstance(action, dict) else dict.fromkeys(acting, action))
    assert not end.observations and list(end.rewards.values()) == rewards
    assert sum(end.illegal.values()) == (1 if isinstance(action, dict) else len(acting))


def test_a_copy_shares_nothing_and_has_new_random_events():
    episode = world("pig", winscore=30)
    episode.start()
    ends, before = set(), str(episode.state)
    for seed in range(20):
        twin = episode.copy()
        twin.reseed(seed)
        ends.add(tuple(finished(twin, lambda legal: legal[0], twin.view()).rewards.values()))
        episode.copy().step(dict.fromkeys(episode.legal, "illegal"))
    assert len(ends) > 1 and str(episode.state) == before and not any(episode.illegal.values())
    assert OpenSpiel.fixed(episode.setup) is None
    assert OpenSpiel.fixed(Setup("negotiation")) == "negotiation samples its chance itself"


def test_an_episode_begins_after_an_opening_that_its_seed_chooses():
    starts = OpenSpiel.starts(Setup("tic_tac_toe", options={"opening": 2}))
    boards = [str(world("tic_tac_toe", seed, opening=2).start().board) for seed in range(starts + 1)]
    assert starts == 1 + 9 + 9 * 8 == len({*boards}) and boards[0] == boards[starts]
    assert OpenSpiel.starts(Setup("tic_tac_toe")) == 1 and OpenSpiel.starts(Setup("kuhn_poker")) is None


@pytest.mark.parametrize("seed", range(12))
def test_an_optimal_player_of_an_open_game_has_its_value(seed):
    """The second player wins nim with piles of 1, 3, 5 and 7."""
    episode, rng = world("nim"), random.Random(seed)
    view = episode.start()
    while view.observations:
        [player] = view.observations
        script = "optimal" if player == "player_1" else "random"
        view = episode.step({player: episode.scripted(script, player, rng)})
    assert view.rewards["player_1"] == 1


def test_an_optimal_player_of_kuhn_poker_is_an_equilibrium():
    states = information_states("kuhn_poker")
    assert len(states) == 12
    uniform = {text: dict.fromkeys(state.legal_actions(), 0.5) for text, state in states.items()}
    assert exploitability("kuhn_poker", uniform) == pytest.approx(11 / 24)
    assert exploitability("kuhn_poker", {text: optimal("kuhn_poker")(state) for text, state in states.items()}) < 1e-3


@pytest.mark.parametrize(
    ("refused", "match"),
    [
        (lambda: world("tictactoe").start(), "did you mean 'tic_tac_toe'"),
        (lambda: world("mfg_garnet").start(), "has no players"),
        (lambda: world("kuhn_poker", playrs=3).start(), "Unknown parameter 'playrs'"),
        (lambda: world("kuhn_poker", opening=2).start(), "remove the option"),
        (lambda: world("tic_tac_toe", opening=-1).start(), "0 or more"),
        (lambda: world("chess", opening=9).start(), "at most 100,000 states"),
        (lambda: optimal("connect_four"), "at most 100,000 states"),
        (lambda: optimal("liars_dice"), "at most 20,000 states"),
        (lambda: optimal("matrix_rps"), "two-player, turn-based, zero-sum"),
        (lambda: Exploitability(world="open_spiel/leduc_poker"), "at most 100 states"),
        (lambda: Exploitability(world="open_spiel/negotiation"), "zero-sum"),
        (lambda: Exploitability(world="pettingzoo/chess"), "a game of OpenSpiel"),
    ],
)
def test_a_game_that_cannot_be_played_is_refused(refused, match):
    with pytest.raises(ConfigError, match=f"(?s){match}"):
        refused()


def test_a_row_with_other_players_than_the_team_is_refused():
    row = {"world_seed": 0, "world_options": '{"players": 3}'}
    with pytest.raises(SessionFault, match="a row of kuhn_poker for player_0, player_1, player_2"):
        played(WorldTeam(world="open_spiel/kuhn_poker"), Task([], extra_info=row), "<action>Pass</action>")


def test_validation_asks_in_every_information_state_and_leaves_out_what_is_illegal():
    # The session has more acts than mas.faults.max_acts, because probes do not count.
    workflow = Exploitability(text="compact", asked=64)
    always_pass, _ = played(workflow, Task.of("x"), "Pass")
    assert "exploitability" not in always_pass.info
    session, prompts = played(workflow, Task([], validate=True), "Pass")
    assert len(prompts) == 2 + 12 * 64 and {len(prompt.split()) for prompt in prompts} <= {2, 3, 4}
    # A best response bets whatever its card is, and wins the ante of both players.
    assert session.info["exploitability"] == 1.0 and session.info["legal_share"] == 1.0
    assert [reply.probe for reply in session.replies].count(False) == 2
    replies = itertools.cycle(["Pass", "no"])
    half, _ = played(workflow, Task([], validate=True), lambda request, branch: next(replies))
    assert half.info["exploitability"] == 1.0 and half.info["legal_share"] == 0.5
