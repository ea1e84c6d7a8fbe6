"""Certificates for trials: private, never written over; and what `msd doctor` says of those that there are."""

import builtins
import datetime
import json
import re
import shutil
from pathlib import Path

import pytest

import msd
from msd.cli.main import run as command
from msd.client.link.certificates import certificates_of
from msd.client.link.tls import check
from msd.errors import ConfigError
from msd.runtime import certificates as looks
from msd.runtime.authority import make_certificates
from msd.runtime.certificates import look_at_certificates
from msd.testing import scenarios

FILES = {"ca.key", "ca.pem", "run.key", "run.pem", "security.yaml"}


def findings(security, **changes):
    config = scenarios.text(security=security, **changes)
    return {finding.subject: finding for finding in look_at_certificates(config)}


def test_what_is_made_is_private_fits_together_and_is_good_for_a_while(tmp_path):
    made = make_certificates(tmp_path / "new" / "certs", names=["node1.cluster", "10.0.0.1"], days=30)
    folder = tmp_path / "new" / "certs"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in folder.iterdir()} == FILES
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert {"localhost", "127.0.0.1", "::1", "node1.cluster", "10.0.0.1"} <= set(made.names)
    found = certificates_of(made.security)
    assert found is not None
    check(found)
    left = looks.ending(found) - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=29) < left <= datetime.timedelta(days=30)


@pytest.mark.parametrize("name", sorted(FILES))
def test_nothing_is_written_over(tmp_path, name):
    (tmp_path / name).symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path / name} is there already; name another folder")):
        make_certificates(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_folder_that_cannot_be_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"certificates cannot be written to .*file"):
        make_certificates(tmp_path / "file")


def test_without_the_package_it_is_said_what_to_install(tmp_path, monkeypatch):
    original = builtins.__import__

    def missing(name, *arguments, **options):
        if name.partition(".")[0] == "cryptography":
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r"needs the package cryptography: pip install 'msd\[tls\]'"):
        make_certificates(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_what_a_configuration_takes(tmp_path, capsys):
    assert command(["doctor", "--make-certs", str(tmp_path / "certs"), "--name", "node1"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("security:\n  ca: ")
    assert "node1" in printed.err
    assert "MSD_TLS_CA=" in printed.err
    (tmp_path / "a.txt").write_text("hello\n" * 10)
    path = tmp_path / "config.yaml"
    path.write_text(f"sources: {{books: a.txt}}\nmesh: {{dp: 1}}\n{printed.out}")
    taken = msd.load_config(path)
    assert taken.security is not None
    assert taken.security.ca == str(tmp_path / "certs" / "ca.pem")
    path.write_text("sources: {books: a.txt}\nmesh: {dp: 1}\n")
    same = msd.load_config(path, overrides=[f"security=@{tmp_path / 'certs' / 'security.yaml'}"])
    assert same.security == taken.security
    assert command(["doctor", "--make-certs", str(tmp_path / "certs")]) == 2
    assert "is there already" in capsys.readouterr().err
    assert command(["doctor", "--make-certs", str(tmp_path / "x"), "--any-host", "--name", "a", "--json"]) == 2
    assert command(["doctor", "--make-certs", str(tmp_path / "y"), "--any-host", "--days", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["names"] == []


def test_doctor_says_until_when_certificates_are_good(certificates, tmp_path):
    assert findings(certificates("run"))["certificates"].verdict == "fine"
    short = make_certificates(tmp_path, days=2).security
    found = findings(short)["certificates"]
    assert (found.verdict, "(1 days)" in found.found) == ("notice", True)
    found = findings(certificates("expired"))["certificates"]
    assert (found.verdict, "has expired" in found.found) == ("bad", True)


def test_doctor_names_keys_that_others_may_read_and_files_that_do_not_fit(certificates, tmp_path):
    ours = certificates("run")
    open_key = tmp_path / "run.key"
    shutil.copyfile(ours["key"], open_key)
    open_key.chmod(0o644)
    found = findings({**ours, "key": str(open_key)})
    assert found["certificates"].verdict == "fine"
    assert found["keys"].verdict == "bad"
    assert f"chmod 600 {open_key}" in found["keys"].advice
    found = findings({**ours, "key": certificates("other")["key"]})
    assert "is not the key of" in found["certificates"].found
    found = findings({**ours, "ca": certificates("other")["ca"]})
    assert "is not signed by" in found["certificates"].found
    found = findings({**ours, "ca": str(tmp_path / "none")})
    assert "cannot be read" in found["certificates"].found


def test_doctor_looks_at_each_role_that_has_files_of_its_own(certificates, tmp_path):
    ours, other = certificates("run"), certificates("other")
    pair = {"certificate": other["certificate"], "key": other["key"]}
    found = findings({**ours, "worker": pair})
    assert {subject: finding.verdict for subject, finding in found.items()} == {
        "certificates of scheduler and client": "fine",
        "certificates of worker": "bad",
    }
    assert list(look_at_certificates(scenarios.text())) == []


@pytest.mark.parametrize(
    ("security", "message"),
    [
        ({"ca": "a"}, "security names no certificate for the scheduler; set security.certificate"),
        ({"ca": "a", "certificate": "b"}, "security.key is missing; a certificate and its key go together"),
        ({"certificate": "b", "key": "c"}, "ca"),
        ({"ca": "", "certificate": "b", "key": "c"}, "security.ca is empty"),
        ({"ca": "a", "certificate": "b", "key": "c", "cert": "d"}, "unknown key 'cert'"),
        ({"ca": "a", "worker": {"certificate": "b", "key": "c"}}, "no certificate for the scheduler"),
    ],
)
def test_a_section_that_cannot_be_used_is_refused_where_it_is_read(security, message):
    with pytest.raises(ConfigError, match=message):
        scenarios.text(security=security)


def test_paths_resolve_against_the_file_and_each_role_may_have_its_own(tmp_path):
    (tmp_path / "a.txt").write_text("hello\n")
    path = tmp_path / "config.yaml"
    path.write_text(
        "sources: {books: a.txt}\nmesh: {dp: 1}\n"
        "security: {ca: certs/ca.pem, certificate: run.pem, key: run.key, worker: {certificate: w.pem, key: w.key}}\n"
    )
    security = msd.load_config(path).security
    assert security is not None
    assert security.of("worker").certificate == str(tmp_path / "w.pem")
    assert security.of("client").key == str(tmp_path / "run.key")
    assert Path(security.of("scheduler").ca) == tmp_path / "certs" / "ca.pem"


def test_the_folder_of_images_resolves_against_the_file(tmp_path):
    (tmp_path / "a.txt").write_text("hello\n")
    path = tmp_path / "config.yaml"
    path.write_text(
        "sources: {photos: {path: a.txt, transforms: [{kind: image, field: path, folder: pictures}]}}\nmesh: {dp: 1}\n"
    )
    (transform,) = msd.load_config(path).sources["photos"].transforms
    assert transform.folder == str(tmp_path / "pictures")


def test_a_scheduler_in_the_clear_may_be_allowed(certificates):
    runtime = {"scheduler": "tcp://127.0.0.1:1"}
    with pytest.raises(ConfigError, match=r"set security.require_encryption: false"):
        scenarios.text(security=certificates("run"), runtime=runtime)
    assert scenarios.text(security={**certificates("run"), "require_encryption": False}, runtime=runtime).security
