import math
import re

import pytest

from rl4dialog.features.serving.replies import TokenDetails
from rl4dialog.features.serving.token_colours import QUANTITIES, Scale, common_scale, tokens_html

LOG_PROB, VALUE, KL, ADVANTAGE = QUANTITIES.values()
DETAILS = TokenDetails([" a", "b"], [-2.0, -0.5], [0.25, 1.5], [-0.5, 0.25], [0.5, -1.5])


def backgrounds(html):
    return re.findall(r'class="token" style="background: (rgb\([\d, ]+\))"', html)


@pytest.mark.parametrize(
    ("quantity", "low", "high"), [(LOG_PROB, -3.0, 0.0), (VALUE, 0.25, 2.0), (KL, -0.75, 0.75), (ADVANTAGE, -1.5, 1.5)]
)
def test_scale_is_the_same_for_both_replies(quantity, low, high):
    other = TokenDetails(["c"], [-3.0], [2.0], [0.75], [1.0])
    for details in ([DETAILS, other], [other, None, DETAILS]):
        scale = common_scale(quantity, details)
        assert scale is not None and (scale.low, scale.high) == (low, high)


def test_numbers_that_are_not_finite_are_grey_and_do_not_stretch_the_scale():
    details = TokenDetails(["a", "b"], [-math.inf, -1.0])
    scale = common_scale(LOG_PROB, [details])
    assert scale is not None and scale.low == -1.0
    html = tokens_html(details, LOG_PROB, scale)
    assert backgrounds(html)[0] == "rgb(200, 200, 200)" and "<small>-∞</small>" in html
    assert common_scale(VALUE, [details]) is None and common_scale(LOG_PROB, [None]) is None


def test_colour_lies_between_those_of_the_ends():
    scale = Scale(KL, -1.0, 1.0)
    blue, pale, red = (f"rgb{colour}" for colour in KL.colours)
    assert [scale.colour(number) for number in (-1.0, 0.0, 1.0, -7.0, 7.0)] == [blue, pale, red, blue, red]
    assert scale.colour(0.5) not in (pale, red)
    bad, _, good = (f"rgb{colour}" for colour in ADVANTAGE.colours)
    assert [Scale(ADVANTAGE, -1.0, 1.0).colour(number) for number in (-1.0, 1.0)] == [bad, good]
    assert Scale(VALUE, 2.0, 2.0).colour(2.0) == f"rgb{VALUE.colours[0]}"


def test_legend_tells_the_range_and_the_pointer_all_numbers():
    html = tokens_html(DETAILS, KL, common_scale(KL, [DETAILS]))
    assert "KL in nats <span>-0.50</span>" in html and "<span>0.50</span></p>" in html
    assert 'title="log-prob -2.00, value 0.25, KL -0.50, Q - V 0.50"' in html
    assert "<b> a</b><small>-0.50</small>" in html
    assert len(set(backgrounds(html))) == 2


def test_missing_numbers_say_why():
    details = TokenDetails(["a"], [-1.0], missing={"values": "there is no critic <here>"})
    html = tokens_html(details, VALUE, common_scale(VALUE, [details, DETAILS]))
    assert "No value: there is no critic &lt;here&gt;" in html
    assert "<b>a</b></span>" in html and "legend" not in html


def test_token_is_a_text_whatever_it_is():
    details = TokenDetails(["<script>", '"', "{{x}}", "${1}", "\n", "", " ", "\x1b"], [-1.0] * 8)
    html = tokens_html(details, LOG_PROB, common_scale(LOG_PROB, [details]))
    shown = re.findall(r"<b>(.*?)</b>", html, flags=re.DOTALL)
    assert shown[:2] == ["&lt;script&gt;", "&quot;"] and shown[4:] == ["⏎", "∅", "␣", "\ufffd"]
    assert not set("{}$") & set(html)
