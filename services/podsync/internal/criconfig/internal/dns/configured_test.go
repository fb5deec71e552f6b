package dns

import (
	"strings"
	"testing"
)

func TestClusterDNS(t *testing.T) {
	got, err := clusterDNS([]string{"10.96.0.10", "fd00::10"})
	if err != nil || len(got) != 2 || got[1].String() != "fd00::10" {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := clusterDNS([]string{"dns.example"}); err == nil || !strings.Contains(err.Error(), "clusterDNS") {
		t.Errorf("a name: %v", err)
	}
}
