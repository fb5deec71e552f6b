package run

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

func TestDescriptorsOfAnotherProcessAreLeftAlone(t *testing.T) {
	for _, c := range []struct{ count, pid, names, want string }{
		{"", "", "", ""},
		{"1", strconv.Itoa(os.Getpid() + 1), "lock", ""},
		{"2", "", "lock", "LISTEN_FDS"},
		{"-1", "", "lock", "LISTEN_FDS"},
		{"x", "", "lock", "LISTEN_FDS"},
	} {
		t.Setenv("LISTEN_FDS", c.count)
		t.Setenv("LISTEN_PID", c.pid)
		t.Setenv("LISTEN_FDNAMES", c.names)
		in, err := Inherited()
		if len(in.Kept)+len(in.Listeners) != 0 || (c.want == "") != (err == nil) ||
			err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, %v", c, in, err)
		}
		if _, set := os.LookupEnv("LISTEN_FDS"); set {
			t.Errorf("%+v: LISTEN_FDS is left for children", c)
		}
	}
}
