package dns

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

// The program lies beside its root folder; what is there is replaced.
func TestResolvConfOfTheMounter(t *testing.T) {
	dir, own := t.TempDir(), filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.MkdirAll(filepath.Join(dir, "rootfs/etc"), 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "rootfs/etc/resolv.conf")
	write(path, "nameserver 192.0.2.1\n")
	write(own, "nameserver 192.0.2.2\nsearch a.example b.example\n")
	servers := []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00::10")}
	const named = "nameserver 10.96.0.10\nnameserver fd00::10\n"
	for resolvConf, want := range map[string]string{
		own: named + "search a.example b.example\n", "": named, "/nonexistent": named,
	} {
		New(Options{ClusterDNS: servers, ResolvConf: resolvConf}).SetUpMounter(filepath.Join(dir, "mounter"))
		got, err := os.ReadFile(path)
		if err != nil || string(got) != want {
			t.Errorf("resolvConf %q gives %q, %v; want %q", resolvConf, got, err, want)
		}
	}
	New(Options{}).SetUpMounter(filepath.Join(dir, "nothing/mounter")) // is logged
}
