package up

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/microlet/microlet/proto/role"
)

// TestSysusers: the users that the package makes are the identities of the services.
func TestSysusers(t *testing.T) {
	text, err := os.ReadFile("../../../../deploy/sysusers.d/microlet.conf")
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		before, _, _ := strings.Cut(line, `"`)
		has[strings.Join(strings.Fields(before), " ")] = true
	}
	want := []string{fmt.Sprintf("g microlet %d", role.GroupNode), fmt.Sprintf("g microlet-logs %d", role.GroupLogs)}
	for _, r := range role.All() {
		id, err := role.Get(r)
		if err != nil {
			t.Fatal(err)
		}
		if id.UID == 0 {
			continue
		}
		want = append(want, fmt.Sprintf("u microlet-%s %d:%d", r, id.UID, id.GID))
		for range id.Groups {
			want = append(want, fmt.Sprintf("m microlet-%s microlet-logs", r))
		}
		for _, group := range id.HostGroups {
			want = append(want, fmt.Sprintf("m microlet-%s %s", r, group))
		}
	}
	for _, line := range want {
		if !has[line] {
			t.Errorf("deploy/sysusers.d/microlet.conf has no line %q", line)
		}
	}
}
