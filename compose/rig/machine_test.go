package rig

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestKubeletUnitDiffersInTheProgramAlone(t *testing.T) {
	text, err := os.ReadFile("../../deploy/systemd/microlet.service")
	if err != nil {
		t.Fatal(err)
	}
	unit, err := kubeletUnit(string(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\nExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS " +
			"$KUBELET_EXTRA_ARGS\n",
		"\nConflicts=microlet.service\n", "\nKillMode=mixed\n", "\nType=notify\n",
	} {
		if !strings.Contains(unit, want) {
			t.Errorf("the unit lacks %q", want)
		}
	}
	if _, err := kubeletUnit("[Service]\nExecStart=/usr/bin/other\n"); err == nil {
		t.Error("a unit of something else was taken")
	}
}

func TestUnitExtra(t *testing.T) {
	const head = "# What the rig adds.\n[Service]\n"
	for _, tc := range []struct {
		r    record
		want string
	}{
		{record{Watchdog: 10 * time.Second}, ""}, // the unit has a period of its own
		{record{Watchdog: -1}, "WatchdogSec=0\n"},
		{record{DefaultPlaces: true}, "Restart=no\nRemainAfterExit=yes\n"},
		{
			record{DefaultPlaces: true, Standalone: true},
			"Restart=no\nRemainAfterExit=yes\nEnvironment=KUBELET_KUBECONFIG_ARGS=\n",
		},
	} {
		tc.r.AgentEnv = []string{"A=b c"}
		if got, want := (&Instance{r: tc.r}).unitExtra(), head+"Environment=\"A=b c\"\n"+tc.want; got != want {
			t.Errorf("%+v: %q, want %q", tc.r, got, want)
		}
	}
}

func TestUnitWhereUpstreamsSuiteLooksForIt(t *testing.T) {
	for _, agent := range []Agent{AgentKubelet, AgentMicrolet} {
		i := &Instance{r: record{Agent: agent}}
		if want := string(agent) + ".service"; i.agentUnit() != want {
			t.Errorf("unit %s, want %s", i.agentUnit(), want)
		}
		i.r.DefaultPlaces = true
		// It is upstream's expression.
		if name := regexp.MustCompile(`(kubelet-\w+)`).FindString(i.agentUnit()); name != SuiteUnit {
			t.Errorf("in unit %s the suite finds %q, want %s", i.agentUnit(), name, SuiteUnit)
		}
	}
}

func TestUnitStatus(t *testing.T) {
	s, err := parseUnitStatus("MainPID=906\nResult=success\nNRestarts=2\nExecMainStartTimestamp=@1795341123\n" +
		"ExecMainStatus=0\nActiveState=active\n")
	if err != nil || s.PID != 906 || s.Starts != 3 || !s.Ready || !s.StartedAt.Equal(time.Unix(1795341123, 0)) ||
		s.LastExit == "" {
		t.Errorf("%+v, %v", s, err)
	}
	s, err = parseUnitStatus(
		"MainPID=0\nResult=signal\nNRestarts=0\nExecMainStartTimestamp=\nExecMainStatus=9\nActiveState=activating\n",
	)
	if err != nil || s.PID != 0 || s.Ready || !s.StartedAt.IsZero() {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := parseUnitStatus("Unit could not be found.\n"); err == nil {
		t.Error("no status was taken for one")
	}
}
