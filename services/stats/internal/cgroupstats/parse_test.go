package cgroupstats

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/cadvisor/lib/model"
)

func TestParse(t *testing.T) {
	pids, err := parseMembers([]byte("12\n3\n0\n"))
	if err != nil || !slices.Equal(pids, []int{3, 12}) {
		t.Errorf("members are %v, %v", pids, err)
	}
	for _, bad := range []string{"x\n", "-1\n", "99999999999\n"} {
		if pids, err := parseMembers([]byte(bad)); err == nil {
			t.Errorf("%q became %v", bad, pids)
		}
	}
	const limits = "Limit                     Soft Limit           Hard Limit           Units     \n" +
		"Max open files            1024                 unlimited            files     \n"
	got, ok := parseOpenFiles(limits)
	if want := (model.UlimitSpec{Name: "max_open_files", SoftLimit: 1024, HardLimit: -1}); !ok || got != want {
		t.Errorf("limits are %+v, %v", got, ok)
	}
	for _, bad := range []string{"", "Max open files  1\n", "Max open files x y files\n", "Max open files -1 -1 files\n"} {
		if got, ok := parseOpenFiles(bad); ok {
			t.Errorf("%q became %+v", bad, got)
		}
	}
	if n, err := parseNumber("f", "max\n"); err != nil || n != math.MaxUint64 {
		t.Errorf("max is %d, %v", n, err)
	}
	if n, err := parseKeyed("f", "oom 1\noom_kill 7\n", "oom_kill"); err != nil || n != 7 {
		t.Errorf("oom_kill is %d, %v", n, err)
	}
	if n, err := parseKeyed("f", "oom_kill x\n", "oom_kill"); err == nil {
		t.Errorf("x is %d", n)
	}
	if n, err := parseLoad("1.36 3.49 4.53 2/3518 3715089\n"); err != nil || n != 3518 {
		t.Errorf("tasks are %d, %v", n, err)
	}
	for _, bad := range []string{"", "1 2 3 4 5", "1 2 3 2/x 5", "1 2 3 2/-7 5"} {
		if n, err := parseLoad(bad); err == nil {
			t.Errorf("%q became %d", bad, n)
		}
	}
	if at := parseBootTime("cpu 1\nbtime 1700000000\n"); !at.Equal(time.Unix(1700000000, 0)) {
		t.Errorf("booted at %s", at)
	}
	if at := parseBootTime("btime -5\n"); !at.IsZero() {
		t.Errorf("booted at %s", at)
	}
}

// Whatever the kernel or a bad mount over /proc says, no parser panics or invents figures.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"1\n2\n", "max", "oom_kill 3\n", "1.36 3.49 4.53 2/3518 3715089", "btime 17\n",
		"Max open files 1024 4096 files\n", "", "\x00", "18446744073709551616",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if pids, err := parseMembers([]byte(text)); err == nil &&
			slices.ContainsFunc(pids, func(p int) bool { return p <= 0 }) {
			t.Errorf("%q has members %v", text, pids)
		}
		if l, ok := parseOpenFiles(text); ok && (l.SoftLimit < -1 || l.HardLimit < -1) {
			t.Errorf("%q has limits %+v", text, l)
		}
		if n, err := parseLoad(text); err == nil && n < 0 {
			t.Errorf("%q has %d tasks", text, n)
		}
		if n, err := parseKeyed("f", text, "oom_kill"); err == nil && n != 0 && !strings.Contains(text, "oom_kill ") {
			t.Errorf("%q has %d", text, n)
		}
		_ = parseBootTime(text)
		_, _ = parseNumber("f", text)
		_, _ = containerOf(text)
	})
}
