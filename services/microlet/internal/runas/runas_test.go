package runas

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/microlet/microlet/proto/role"
)

// asRole has the test binary become the named role and print what it is then.
const asRole = "RUNAS_TEST_ROLE"

func TestMain(m *testing.M) {
	name := os.Getenv(asRole)
	if name == "" {
		os.Exit(m.Run())
	}
	id, err := role.Get(role.Role(name))
	if err == nil {
		err = Exec(id, "/bin/cat", []string{"cat", "/proc/self/status"}, nil)
	}
	_, _ = os.Stderr.WriteString(err.Error())
	os.Exit(1)
}

func TestExec(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, c := range []struct {
		role                      role.Role
		uid, gid, groups, capable string
	}{
		{role.PLEG, "47102", "47100", "", "0000000000000000"},
		{role.Stats, "47106", "47100", "", "0000000000000004"},
		{role.Evictor, "47107", "47100", "", "0000000400000004"},
	} {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		cmd.Env = []string{asRole + "=" + string(c.role)}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", c.role, err, out)
		}
		status := map[string][]string{}
		for line := range strings.Lines(string(out)) {
			if key, value, ok := strings.Cut(line, ":"); ok {
				status[key] = strings.Fields(value)
			}
		}
		for key, want := range map[string][]string{
			"Uid": slices.Repeat([]string{c.uid}, 4), "Gid": slices.Repeat([]string{c.gid}, 4),
			"Groups": strings.Fields(c.groups), "NoNewPrivs": {"1"},
			"CapEff": {c.capable}, "CapPrm": {c.capable}, "CapInh": {c.capable}, "CapBnd": {c.capable},
			"CapAmb": {c.capable},
		} {
			if !slices.Equal(status[key], want) {
				t.Errorf("%s: %s is %q, want %q", c.role, key, status[key], want)
			}
		}
	}
}

func TestExecOfAnUnknownCapability(t *testing.T) {
	if _, err := numbers([]string{"CAP_SYS_ADMIN"}); err == nil {
		t.Error("a capability that no service has was accepted")
	}
}
