"""Identities: what is made, who may read it, and what is refused."""

from __future__ import annotations

import datetime
import errno
import hashlib
import json
import os
import stat
import tomllib

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sottovoce.errors import InputError
from sottovoce.federation import identity
from sottovoce.federation.identity import check_certificate, create_identity, load_identity, locked_identity, tls_name
from sottovoce.federation.member import check_address, read_member
from sottovoce.support.files import write_text


@pytest.fixture
def mercy(tmp_path):
    return create_identity("Mercy", tmp_path / "peer", address="mercy.example:7443")


def test_an_identity_is_read_back_and_its_public_part_has_nothing_private(mercy, tmp_path):
    found = load_identity(mercy.folder)
    assert found == mercy
    public = (tmp_path / "Mercy.member.toml").read_text()
    assert read_member(tmp_path / "Mercy.member.toml") == mercy.member
    assert set(tomllib.loads(public)) == {"name", "address", "listen", "certificate", "exchange_key"}
    private = json.loads((mercy.folder / "identity.json").read_text())
    assert len(mercy.secret) == 32
    assert not any(private[key] in public for key in ("exchange_key", "secret"))
    assert "PRIVATE" not in public
    assert repr(found) == "Identity(Mercy)"
    assert mercy.member.spoken_fingerprint.replace(" ", "").lower() == mercy.member.fingerprint


def test_two_identities_share_nothing(mercy, tmp_path):
    (tmp_path / "other").mkdir()
    other = create_identity("Mercy", tmp_path / "other" / "peer", address="mercy.example:7443")
    assert other.member.fingerprint != mercy.member.fingerprint
    assert {other.tls_key, other.exchange_key, other.secret}.isdisjoint(
        {mercy.tls_key, mercy.exchange_key, mercy.secret}
    )


def test_the_certificate_can_sign_no_other_and_allows_for_wrong_clocks(mercy):
    found = x509.load_pem_x509_certificate(mercy.member.certificate.encode())
    limits = found.extensions.get_extension_for_class(x509.BasicConstraints)
    usage = found.extensions.get_extension_for_class(x509.KeyUsage)
    assert (limits.critical, limits.value.ca) == (True, False)
    assert usage.critical
    allowed = [name for name in ("digital_signature", "key_cert_sign", "crl_sign") if getattr(usage.value, name)]
    assert allowed == ["digital_signature"]
    now = datetime.datetime.now(datetime.UTC)
    assert found.not_valid_before_utc < now - datetime.timedelta(days=2)
    assert found.not_valid_after_utc > now + datetime.timedelta(days=1000)
    both = mercy.member.certificate_bytes + bytes.fromhex(mercy.member.exchange_key)
    assert hashlib.sha256(both).hexdigest() == mercy.member.fingerprint
    assert tls_name(mercy.member) in str(found.extensions)
    check_certificate(mercy.member, "here")


def test_private_files_are_for_their_owner_alone(mercy):
    assert stat.S_IMODE(mercy.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((mercy.folder / "identity.json").stat().st_mode) == 0o600


@pytest.mark.parametrize(("name", "mode"), [("identity.json", 0o640), ("identity.json", 0o604), (".", 0o755)])
def test_keys_that_others_can_read_are_refused(mercy, name, mode):
    path = mercy.folder / name
    path.chmod(mode)
    with pytest.raises(InputError, match=r"can be read by others; .* type chmod [67]00"):
        load_identity(mercy.folder)


def test_a_folder_that_others_can_read_gets_no_keys(tmp_path):
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer").chmod(0o755)
    with pytest.raises(InputError, match="chmod 700"):
        create_identity("Mercy", tmp_path / "peer", address="mercy.example:7443")
    assert os.listdir(tmp_path / "peer") == []


def test_nothing_is_overwritten(mercy, tmp_path):
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name, folder in (("Mercy", "peer"), ("Hill", "peer"), ("Mercy", "another")):
        with pytest.raises(InputError, match="an identity is never overwritten"):
            create_identity(name, tmp_path / folder, address="mercy.example:7443")
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("written", [0, 1, 2])
def test_an_identity_that_a_full_disk_prevented_is_made_by_the_next_attempt(tmp_path, monkeypatch, written):
    done = []

    def write_until_full(path, text, **more):
        if len(done) == written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        done.append(path)
        write_text(path, text, **more)

    with monkeypatch.context() as full:
        full.setattr(identity, "write_text", write_until_full)
        with pytest.raises(OSError, match="No space left"):
            create_identity("Mercy", tmp_path / "peer", address="mercy.example:7443")
    check_made_again(tmp_path)


@pytest.mark.parametrize("handed_out", [True, False])
def test_what_a_killed_process_left_of_an_identity_is_replaced(mercy, tmp_path, handed_out):
    """Unless the folder has been used: whoever threw the keys away after a run keeps the rest."""
    (mercy.folder / "identity.json").unlink()
    (mercy.folder / "ledger.db").touch()
    with pytest.raises(InputError, match="an identity is never overwritten"):
        create_identity("Mercy", mercy.folder, address="mercy.example:7443")
    (mercy.folder / "ledger.db").unlink()
    if not handed_out:
        (tmp_path / "Mercy.member.toml").unlink()
    assert check_made_again(tmp_path) != mercy


def check_made_again(folder):
    made = create_identity("Mercy", folder / "peer", address="mercy.example:7443")
    assert load_identity(folder / "peer") == made
    assert read_member(folder / "Mercy.member.toml") == made.member
    return made


def test_one_process_at_a_time(mercy):
    with locked_identity(mercy.folder) as found:
        assert found == mercy
        with pytest.raises(InputError, match="another process"), locked_identity(mercy.folder):
            pass


@pytest.mark.parametrize(
    ("name", "address", "listen", "reason"),
    [
        ("Mercy 1", "mercy.example:7443", True, "a name has"),
        ("../Mercy", "mercy.example:7443", True, "a name has"),
        ("Mercy", "mercy.example", True, "HOST:PORT"),
        ("Mercy", "mercy.example:70000", True, "HOST:PORT"),
        ("Mercy", f"{'a' * 64}.example:7443", True, "63 between two dots"),
        ("Mercy", f"{'a.' * 126}ab:7443", True, "at most 253 characters"),
        ("Mercy", "mercy..example:7443", True, "HOST:PORT"),
        ("Mercy", "[::1::]:7443", True, "HOST:PORT"),
        ("Mercy", None, True, "listens and has no address"),
    ],
)
def test_wrong_names_and_addresses_leave_nothing_behind(tmp_path, name, address, listen, reason):
    with pytest.raises(InputError, match=reason):
        create_identity(name, tmp_path / "peer", address=address, listen=listen)
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("host", ["127.0.0.1", "[2001:db8::1]", "localhost", f"{'a' * 63}.example", f"{'a.' * 126}a"])
def test_hosts_of_every_kind_are_addresses(host):
    check_address(f"{host}:7443", "here")


def test_a_member_that_does_not_listen_needs_no_address(tmp_path):
    created = create_identity("Hill", tmp_path / "peer", address=None, listen=False)
    assert load_identity(created.folder).member.address is None


def test_parts_of_two_identities_are_refused(mercy, tmp_path):
    (tmp_path / "other").mkdir()
    other = create_identity("Mercy", tmp_path / "other" / "peer", address="mercy.example:7443")
    (mercy.folder / "member.toml").write_text(other.member.toml())
    with pytest.raises(InputError, match="damaged, or mixed from two members"):
        load_identity(mercy.folder)


def test_a_certificate_authority_is_no_member(mercy):
    """Whoever could sign certificates could sign one in another's name."""
    key = ec.generate_private_key(ec.SECP256R1())
    own = x509.load_pem_x509_certificate(mercy.member.certificate.encode())
    signed = (
        x509.CertificateBuilder()
        .subject_name(own.subject)
        .issuer_name(own.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(own.not_valid_before_utc)
        .not_valid_after(own.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = signed.public_bytes(serialization.Encoding.PEM).decode()
    for certificate in (pem, mercy.member.certificate.replace("MII", "MIJ", 1)):
        with pytest.raises(InputError, match="not one that sotto peer init makes"):
            check_certificate(mercy.member.model_copy(update={"certificate": certificate}), "here")
