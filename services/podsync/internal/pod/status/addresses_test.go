package status

import (
	"slices"
	"testing"
)

func TestSortIPs(t *testing.T) {
	for name, test := range map[string]struct {
		ips    []string
		nodeIP string
		want   []string
	}{
		"none":                   {nil, "10.0.0.1", nil},
		"IPv4 node":              {[]string{"fd00::1", "10.1.0.1"}, "10.0.0.1", []string{"10.1.0.1", "fd00::1"}},
		"IPv6 node":              {[]string{"10.1.0.1", "fd00::1"}, "fd00::9", []string{"fd00::1", "10.1.0.1"}},
		"unknown node":           {[]string{"fd00::1", "10.1.0.1"}, "", []string{"10.1.0.1", "fd00::1"}},
		"two of a family":        {[]string{"10.1.0.1", "10.1.0.2"}, "10.0.0.1", []string{"10.1.0.1"}},
		"another spelling":       {[]string{"FD00:0:0::1", "::ffff:10.1.0.1"}, "fd00::9", []string{"fd00::1", "10.1.0.1"}},
		"leading zeros":          {[]string{"10.01.0.001"}, "10.0.0.1", []string{"10.1.0.1"}},
		"no address":             {[]string{"junk", "", "10.1.0.1/24", "fd00::1"}, "10.0.0.1", []string{"fd00::1"}},
		"a zone, which is local": {[]string{"fe80::1%eth0", "10.1.0.1"}, "fd00::9", []string{"10.1.0.1"}},
	} {
		if got := SortIPs(test.ips, test.nodeIP); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
