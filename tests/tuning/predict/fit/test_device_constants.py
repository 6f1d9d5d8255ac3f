"""Constants of a kind of device: who gets them, and what is said of them."""

from dataclasses import replace

from tuning.predict import target
from tuning.predict.cluster import catalogue
from tuning.predict.fit import calibrate, device_constants
from tuning.predict.model.hardware import Link


def test_every_kind_that_is_named_has_a_file_and_is_in_the_catalogue() -> None:
    assert set(device_constants.FITTED) <= set(catalogue.accelerators())
    for name in device_constants.FITTED:
        known = device_constants.find_constants(name)
        assert known is not None
        assert known.low < 0 < known.high
    assert device_constants.find_constants("a100-80gb") is None


def test_clusters_of_that_kind_alone_have_them() -> None:
    own = device_constants.find_constants("mi250x-gcd")
    frontier, selene = catalogue.cluster("frontier", 2), catalogue.cluster("selene", 2)
    for cluster in (frontier, catalogue.cluster("lumi", 2)):
        assert target.cluster_target(cluster).calibrated == own
    mixed = replace(frontier, groups=(*frontier.groups, *selene.groups), across=Link(1e-5, 1e9))
    both = target.cluster_target(mixed)
    assert both.calibrated == target.cluster_target(selene).calibrated == calibrate.shipped_constants()
    assert both.unsure > 0
    assert any("mi250x-gcd is believed" in note for note in both.notes)


def test_the_note_says_by_how_far_others_were_missed() -> None:
    known = replace(calibrate.shipped_constants(), low=-0.0953, high=0.0513, trials=3)
    assert "90 % are within -5 % to +10 %" in device_constants.note("a kind", known)
