package machine

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func testRecord(a Assets) record {
	return record{
		Name: "node", ID: "0123456789abcdef0123456789abcdef", Assets: a, Memory: 1024, CPUs: 2,
		Link: Link{
			Tap:     "tap7",
			Address: netip.MustParsePrefix("10.0.0.2/24"),
			Gateway: netip.MustParseAddr("10.0.0.1"),
		},
	}
}

func TestProgram(t *testing.T) {
	uml := Assets{Kernel: "/c/linux", Image: "/c/disk.img"}
	kvm := Assets{
		Kind:    KindQEMU,
		Accel:   "kvm",
		Kernel:  "/c/vmlinuz",
		Initrd:  "/c/initrd",
		Modules: "/c/modules.img",
		Image:   "/c/disk.img",
	}
	for _, tc := range []struct {
		assets Assets
		path   string
		want   []string
	}{
		{uml, "/m/boot", []string{
			"mem=1024M", "ncpus=2", "ubd0=/m/disk.cow,/c/disk.img", "vec0:transport=tap,ifname=tap7,depth=128,gro=1",
		}},
		{kvm, "/m/boot", []string{
			"kvm", "/c/vmlinuz", "/c/initrd", "1024M", "virtio-net-pci,netdev=link,mac=52:54:00:01:23:45",
			"if=none,id=modules,format=raw,readonly=on,file=/c/modules.img",
		}},
	} {
		b, err := backendOf("/m", testRecord(tc.assets))
		if err != nil {
			t.Fatal(err)
		}
		p := b.program()
		if p.path != tc.path {
			t.Errorf("%s: the program is %s, want %s", tc.assets.kind(), p.path, tc.path)
		}
		for _, want := range tc.want {
			if !slices.Contains(p.args, want) {
				t.Errorf("%s: %q is not in %q", tc.assets.kind(), want, p.args)
			}
		}
		// Each kind of machine gives its kernel the same parameters.
		line := strings.Join(p.args, " ")
		for _, want := range []string{
			"machine.address=10.0.0.2/24", "machine.gateway=10.0.0.1", "systemd.hostname=node",
			"systemd.machine_id=0123456789abcdef0123456789abcdef",
		} {
			if !strings.Contains(line, want) {
				t.Errorf("%s: %q is not in %q", tc.assets.kind(), want, line)
			}
		}
	}
	if _, err := backendOf("/m", testRecord(Assets{Kind: "vmware"})); err == nil {
		t.Error("a machine of an unknown kind was made")
	}
}

func TestPatience(t *testing.T) {
	const usual = 500 * time.Millisecond
	for accel, want := range map[string]time.Duration{"": usual, "kvm": usual, "tcg": 5 * time.Second} {
		if got := testRecord(Assets{Accel: accel}).patience(); got != want {
			t.Errorf("accel %q: %s, want %s", accel, got, want)
		}
	}
}

func TestRecord(t *testing.T) {
	dir := t.TempDir()
	r := testRecord(Assets{Kind: KindQEMU, Accel: "tcg", Kernel: "/k", Initrd: "/i", Modules: "/m", Image: "/d"})
	if err := r.save(dir); err != nil {
		t.Fatal(err)
	}
	if got, err := load(dir); err != nil || got.Assets != r.Assets || got.Link != r.Link || got.ID != r.ID {
		t.Errorf("%+v, %v, want %+v", got, err, r)
	}
	// What was recorded when there was one kind, with and without its name.
	for _, text := range []string{
		`{"name": "old", "assets": {"kernel": "/k", "image": "/d"}}`,
		`{"kind": "uml", "name": "old", "assets": {"kernel": "/k", "image": "/d"}}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, recordFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := load(dir)
		if err != nil || got.Name != "old" || got.Assets.kind() != KindUML {
			t.Errorf("%s: %+v of kind %s, %v, want %s", text, got, got.Assets.kind(), err, KindUML)
		}
	}
}
