package service

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

func claim(t *testing.T, dir string) (Config, func() error, error) {
	t.Helper()
	c := DefaultConfig()
	c.RuntimeDir, c.Replica = dir, AutoReplica
	release, err := c.claimReplica(role.Prober)
	return c, release, err
}

// Each process has a number of its own, and the next one takes the lowest that is free.
func TestClaimedReplicas(t *testing.T) {
	dir := proctest.TempDir(t, 0o755)
	c := Config{RuntimeDir: dir}
	if err := os.MkdirAll(c.SocketDir(role.Prober), 0o750); err != nil {
		t.Fatal(err)
	}
	releases := map[string]func() error{}
	for n := range MaxReplicas {
		c, release, err := claim(t, dir)
		if err != nil {
			t.Fatal(err)
		}
		if c.Replica != strconv.Itoa(n) {
			t.Errorf("process %d is replica %s", n, c.Replica)
		}
		releases[c.Replica] = release
	}
	if _, _, err := claim(t, dir); err == nil || !strings.Contains(err.Error(), "run already") {
		t.Errorf("one more got %v", err)
	}
	if names, err := Replicas(c.Socket(role.Prober)); err != nil || len(names) > 0 {
		t.Errorf("claims are taken for replicas that serve: %v, %v", names, err)
	}
	if err := releases["3"](); err != nil {
		t.Fatal(err)
	}
	back, release, err := claim(t, dir)
	if err != nil || back.Replica != "3" {
		t.Fatalf("the one that came back is %q: %v", back.Replica, err)
	}
	releases["3"] = release
	for _, release := range releases {
		if err := release(); err != nil {
			t.Error(err)
		}
	}
}

func TestAReplicaThatHasANumberClaimsNone(t *testing.T) {
	c := DefaultConfig()
	c.RuntimeDir, c.Replica = "/nowhere", "2"
	if _, err := c.claimReplica(role.Prober); err != nil || c.Replica != "2" {
		t.Errorf("replica %q: %v", c.Replica, err)
	}
}

func TestIsReplica(t *testing.T) {
	for name, want := range map[string]bool{
		"0": true, "9": true, "15": true, "16": false, "-1": false, "+1": false, "01": false, "": false, "blue": false,
		"auto": false, "99999999999999999999": false,
	} {
		if got := IsReplica(name); got != want {
			t.Errorf("%q is a replica's number: %t", name, got)
		}
	}
}
