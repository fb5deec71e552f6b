package imageref

import (
	_ "crypto/sha512" // or upstream does not know the digests of these algorithms
	"strings"
	"testing"

	"github.com/distribution/reference"
)

const (
	sha256 = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	hex64  = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

// names are of every kind that the grammar knows, and next to it.
var names = []string{
	"", " ", "/", ":", "@", ".", "-", "a", "A", "busybox", "busybox:", "busybox:1.36", "busybox:latest", "busybox@",
	"Busybox", "busybox:LATEST", "busybox:-a", "busybox:.a", "busybox:_a", "busybox:a b", "busybox:é", "busybox:\n",
	"busybox\n", "bücher", "K", "\u212a", "library/busybox", "docker.io/busybox", "docker.io/library/busybox",
	"index.docker.io/busybox", "index.docker.io/a/b", "localhost/a", "localhost:5000/a", "localhost:5000/a:b",
	"localhost:/a", "localhost:x/a", "registry.k8s.io/pause:3.10", "example.com:80/a/b/c:d@" + sha256,
	"example.com/A", "Example.com/a", "EXAMPLE/a", "example/A", "a/b", "a/b/", "/a/b", "a//b", "a.b", "a..b", "a_b",
	"a__b", "a___b", "a-b", "a--b", "a---b", "a-.b", "a._b", "-a", "a-", "_a", "a_", ".a", "a.", "a:b:c", "a:b/c",
	"a:5000", "a:5000/b", "[::1]/a", "[::1]:80/a", "[::1]:/a", "[::1]x/a", "[]/a", "[g]/a", "[::1/a", "::1/a", "1.2.3.4/a",
	"-a.b/c", "a-.b/c", "a..b/c", "a.b./c", ".a.b/c", "a_b.c/d", "a--b.c/d", "xn--80ak6aa92e.com/a",
	hex64, hex64 + "0", hex64[1:], strings.ToUpper(hex64), "a/" + hex64, "a:" + hex64, sha256, "busybox@" + sha256,
	"busybox:1@" + sha256, "busybox@" + sha256 + "0", "busybox@" + sha256[:60], "busybox@" + sha256[:39],
	"busybox@" + sha256[:38], "busybox@" + strings.ToUpper(sha256), "busybox@SHA256:" + hex64, "busybox@md5:" + hex64,
	"busybox@md5:" + hex64[:32], "busybox@sha512:" + hex64 + hex64, "busybox@sha384:" + hex64 + hex64[:32],
	"busybox@sha384:" + hex64, "busybox@sha512:" + hex64, "busybox@sha256+b64:" + hex64, "busybox@a.b-c_d+e:" + hex64,
	"busybox@a..b:" + hex64, "busybox@.a:" + hex64, "busybox@a.:" + hex64, "busybox@a.1:" + hex64, "busybox@1a:" + hex64,
	"busybox@:" + hex64, "busybox@" + hex64, "busybox@sha256:" + hex64[:63] + "g", "busybox@" + sha256 + "@" + sha256,
	"busybox@" + sha256 + ":1", "busybox@sha256:" + strings.ToUpper(hex64), "@" + sha256, ":1", "a@b", "md5:" + hex64,
	"sha256:", ":" + hex64, "sha512:" + hex64 + hex64, "sha256:" + strings.ToUpper(hex64), "md5:x", "A:x", "sha256:x",
	strings.Repeat("a", 255), strings.Repeat("a", 256), "b/" + strings.Repeat("a", 255), "b.c/" + strings.Repeat("a", 255),
	"b.c/" + strings.Repeat("a", 256), strings.Repeat("a/", 200) + "a", "a:" + strings.Repeat("t", 128),
	"a:" + strings.Repeat("t", 129), strings.Repeat("x", 300) + ".com/a",
}

func TestAsUpstream(t *testing.T) {
	for _, name := range names {
		compare(t, name)
	}
}

func FuzzAsUpstream(f *testing.F) {
	for _, name := range names {
		f.Add(name)
	}
	f.Fuzz(compare)
}

// compare takes a name apart here and there.
func compare(t *testing.T, name string) {
	t.Helper()
	got, err := Parse(name)
	want, wantErr := reference.Parse(name)
	same(t, "Parse", name, got, err, want, wantErr)

	got, err = ParseNormalized(name)
	named, wantErr := reference.ParseNormalizedNamed(name)
	same(t, "ParseNormalized", name, got, err, named, wantErr)

	resolved, wantErr := reference.ParseDockerRef(name)
	same(t, "Resolved", name, got.Resolved(), err, resolved, wantErr)

	id, ok := ID(name)
	want, err = reference.ParseAnyReference(name)
	_, hasName := want.(reference.Named)
	if isID := err == nil && !hasName; ok != isID || ok && id != want.String() {
		t.Errorf("ID(%q) = %q, %v, want %v, %v", name, id, ok, want, isID)
	}
}

func same(t *testing.T, what, name string, got Reference, err error, want reference.Reference, wantErr error) {
	t.Helper()
	if err != nil || wantErr != nil {
		if err == nil || wantErr == nil || err.Error() != wantErr.Error() {
			t.Errorf("%s(%q): error %v, want %v", what, name, err, wantErr)
		}
		return
	}
	named, ok := want.(reference.Named)
	if !ok {
		t.Fatalf("%s(%q): upstream returns %T", what, name, want)
	}
	var tag, digest string
	if t, ok := want.(reference.Tagged); ok {
		tag = t.Tag()
	}
	if d, ok := want.(reference.Digested); ok {
		digest = d.Digest().String()
	}
	if got.Domain != reference.Domain(named) || got.Path != reference.Path(named) || got.Tag != tag ||
		got.Digest != digest || got.Name() != named.Name() || got.String() != want.String() {
		t.Errorf("%s(%q) = %+v, want %v", what, name, got, want)
	}
}
