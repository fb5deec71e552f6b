package nfsexport

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestOf(t *testing.T) {
	t.Parallel()
	for source, want := range map[v1.NFSVolumeSource]string{
		{Server: "fs", Path: "/export"}:                 "fs:/export",
		{Server: "fs.example.org.", Path: "/"}:          "fs.example.org.:/",
		{Server: "fs_1-a", Path: "/a b/c:d,e=f/-g"}:     "fs_1-a:/a b/c:d,e=f/-g",
		{Server: "dateien-süd", Path: "/export"}:        "dateien-süd:/export",
		{Server: "10.0.0.1", Path: "/export/"}:          "10.0.0.1:/export/",
		{Server: "fd00::1", Path: "/export"}:            "[fd00::1]:/export",
		{Server: "FD00::1", Path: "/export"}:            "[FD00::1]:/export",
		{Server: "fe80::1%eth0", Path: "/export"}:       "[fe80::1%eth0]:/export",
		{Server: "::ffff:10.0.0.1", Path: "/export"}:    "[::ffff:10.0.0.1]:/export",
		{Server: "[fd00::1]", Path: "/export"}:          "[fd00::1]:/export",
		{Server: "fs", Path: "/export/../other//x"}:     "fs:/export/../other//x",
		{Server: "", Path: "/export"}:                   `error: nfs.server "" must be the name or the IP address of`,
		{Server: "-fs", Path: "/export"}:                `error: nfs.server "-fs" must be the name or the IP address of`,
		{Server: "--", Path: "/export"}:                 `error: nfs.server "--" must be`,
		{Server: "/fs", Path: "/export"}:                `error: nfs.server "/fs" must be`,
		{Server: "fs:/a", Path: "/export"}:              `error: nfs.server "fs:/a" must be`,
		{Server: " fs", Path: "/export"}:                `error: nfs.server " fs" must be`,
		{Server: "fs\t", Path: "/export"}:               `error: nfs.server "fs\t" must be`,
		{Server: "fs\x00", Path: "/export"}:             `error: nfs.server "fs\x00" must be`,
		{Server: "fs\u00a0x", Path: "/export"}:          `error: nfs.server "fs\u00a0x" must be`,
		{Server: "fs", Path: "export"}:                  `error: nfs.path "export" must be an absolute path`,
		{Server: "fs", Path: ""}:                        `error: nfs.path "" must be an absolute path`,
		{Server: "fs", Path: "-export", ReadOnly: true}: `error: nfs.path "-export" must be an absolute path`,
	} {
		got, err := Of(&source)
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != want && (err == nil || !strings.HasPrefix(got, want)) {
			t.Errorf("%+v: %s, want %s", source, got, want)
		}
	}
}

func TestSame(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		listed, export string
		want           bool
	}{
		{"fs:/export", "fs:/export", true},
		{"fs:/export/", "fs:/export", true},
		{"fs:/export", "fs://export//", true},
		{"fs:/", "fs:/", true},
		{"fs:", "fs:/", true},
		{"[fd00::1]:/export", "[fd00::1]:/export", true},
		{"[fe80::1%eth0]:/a:/b", "[fe80::1%eth0]:/a:/b", true},
		{"other:/export", "fs:/export", false},
		{"fs:/other", "fs:/export", false},
		{"fs:/export/sub", "fs:/export", false},
		{"fs:/", "fs:/export", false},
		{"/export", "fs:/export", false},
		{"tmpfs", "fs:/export", false},
		{"", "", false},
	} {
		if got := Same(c.listed, c.export); got != c.want {
			t.Errorf("%s for %s: %t", c.listed, c.export, got)
		}
	}
}
