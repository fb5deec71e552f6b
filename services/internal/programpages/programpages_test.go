package programpages

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// smaps is that of a program with a part that was written into while it was loaded, and then protected.
const smaps = `00400000-02031000 r-xp 00000000 fe:00 1234                               /usr/local bin/microlet
Size:              28868 kB
Rss:               18340 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
02031000-03e1f000 r--p 01c31000 fe:00 1234                               /usr/local bin/microlet
Rss:               19384 kB
Anonymous:             0 kB
03e1f000-03e2f000 r--p 03a1f000 fe:00 1234                               /usr/local bin/microlet
Anonymous:            64 kB
03e2f000-03f4f000 rw-p 03a2f000 fe:00 1234                               /usr/local bin/microlet
Anonymous:             0 kB
03f4f000-061c3000 rw-p 00000000 00:00 0
Anonymous:             0 kB
7f0c2d000000-7f0c2d100000 r--p 00000000 fe:00 99                         /usr/lib/libc.so.6
Anonymous:             0 kB
7f0c2d100000-7f0c2d200000 r--s 00000000 fe:00 1234                       /usr/local bin/microlet
Anonymous:             0 kB
7f0c2d95c000-7f0c2d95e000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
`

func TestUnchanged(t *testing.T) {
	found, err := unchanged(strings.NewReader(smaps), "/usr/local bin/microlet")
	if err != nil {
		t.Fatal(err)
	}
	if want := []mapping{{0x400000, 0x2031000}, {0x2031000, 0x3e1f000}}; len(found) != 2 || found[0] != want[0] ||
		found[1] != want[1] {
		t.Errorf("%x, want %x", found, want)
	}
}

func TestUnreadableRange(t *testing.T) {
	for _, from := range []string{"00400000 r-xp", "00400000-zz r-xp"} {
		list := strings.Replace(smaps, "00400000-02031000 r-xp", from, 1)
		if _, err := unchanged(strings.NewReader(list), "/usr/local bin/microlet"); err == nil ||
			!strings.Contains(err.Error(), "range of addresses") {
			t.Errorf("%s: %v", from, err)
		}
	}
}

// TestUnmap runs on after it has taken its own program away, with less of it in memory.
func TestUnmap(t *testing.T) {
	before := mapped(t)
	if err := Unmap(); err != nil {
		t.Fatal(err)
	}
	if after := mapped(t); after >= before {
		t.Errorf("%d KiB of files are mapped, and %d KiB were", after, before)
	}
	if err := Unmap(); err != nil {
		t.Errorf("again: %v", err)
	}
}

// mapped is how many KiB of files are in the memory of this process.
func mapped(t *testing.T) (kib int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "RssFile:")
	if _, err := fmt.Sscanf(after, "%d kB", &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}
