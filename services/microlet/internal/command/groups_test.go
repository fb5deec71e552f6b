package command

import (
	"bytes"
	"strings"
	"testing"
	"time"

	supervisorv1 "github.com/microlet/microlet/proto/microlet/supervisor/v1"
)

// inGroup has services share a process.
func inGroup(name string, all ...*supervisorv1.Process) []*supervisorv1.Process {
	for _, p := range all {
		p.Group, p.Pid = name, all[0].GetPid()
	}
	return all
}

// TestRestartOfAGroup: a process is restarted once, and the answer says what it holds.
func TestRestartOfAGroup(t *testing.T) {
	u := &fakeUp{processes: append(inGroup("bus+nodestatus",
		process("bus", supervisorv1.State_STATE_READY, 8, time.Second),
		process("nodestatus", supervisorv1.State_STATE_READY, 8, time.Second)),
		process("pleg", supervisorv1.State_STATE_READY, 9, time.Second))}
	dir := u.serve(t)
	out, err := execute(t, "restart", "all", "--runtime-dir="+dir)
	if _, restarted := u.got(); err != nil || restarted != "bus pleg" ||
		!strings.HasPrefix(out, "the process of bus, nodestatus was restarted: pid 108 is ready") ||
		!strings.Contains(out, "pleg was restarted: pid 109") {
		t.Errorf("%v, %q\n%s", err, restarted, out)
	}
}

// TestStatusOfGroups shows what services share beside the services, and a warning of what is unsafe.
func TestStatusOfGroups(t *testing.T) {
	s := newStatusOf(&supervisorv1.GetStatusResponse{
		Processes: inGroup("podsync+nodeapi", process("podsync", supervisorv1.State_STATE_READY, 8, time.Second)),
		Groups: []*supervisorv1.Group{
			{Name: "bus+nodestatus", Privileges: "uid 47101; API credentials"},
			{Name: "podsync+nodeapi", Privileges: "root with all capabilities", Warning: "who takes it over is root"},
		},
	}, time.Now())
	var table bytes.Buffer
	if err := writeTable(&table, s); err != nil {
		t.Fatal(err)
	}
	want := `
SHARED PROCESS   PRIVILEGES OF EACH SERVICE
bus+nodestatus   uid 47101; API credentials
podsync+nodeapi  root with all capabilities; warning: who takes it over is root
`
	if !strings.HasSuffix(table.String(), want) {
		t.Errorf("the table is\n%s", &table)
	}
	if s.Processes[0].Group != "podsync+nodeapi" || len(s.Groups) != 2 {
		t.Errorf("the status is %+v", s)
	}
	if one, err := s.of([]string{"podsync"}); err != nil || len(one.Groups) > 0 {
		t.Errorf("of podsync alone: %+v, %v", one, err)
	}
}

func TestPlacementIsCompleted(t *testing.T) {
	for _, command := range []string{"up", "check"} {
		out, err := execute(t, "__complete", command, "--placement", "")
		if err != nil || !strings.HasPrefix(out, "processes\ncompact\nsingle\n") {
			t.Errorf("%s completes %q, %v", command, out, err)
		}
	}
}

// TestGroupIsHidden: it is a command for the supervisor.
func TestGroupIsHidden(t *testing.T) {
	out, err := execute(t, "--help")
	if err != nil || strings.Contains(out, "group ") {
		t.Errorf("%v: %s", err, out)
	}
	for args, want := range map[string]string{
		"group":               "name the services",
		"group bus+kubelet":   `"kubelet" is none of this program's services`,
		"group bus extra":     `"extra" is one too many`,
		"group bus+pleg --no": "--no",
	} {
		cmd := Of(strings.Fields(args))
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v lacks %q", args, err, want)
		}
	}
}
