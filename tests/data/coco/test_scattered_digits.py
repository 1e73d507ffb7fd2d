from lambdanets.data.coco.scattered_digits import open_digits


def test_the_set_of_published_results_has_not_changed() -> None:
    assert [images.fingerprint[:16] for images in open_digits()] == ["73409f2af3ade4b5", "013709a00fa9cd50"]
