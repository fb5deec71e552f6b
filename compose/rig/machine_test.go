package rig

import (
	"os"
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
	for watchdog, want := range map[time.Duration]string{
		10 * time.Second: head + "Environment=\"A=b c\"\n", // the unit has a period of its own
		-1:               head + "Environment=\"A=b c\"\nWatchdogSec=0\n",
	} {
		if got := unitExtra([]string{"A=b c"}, watchdog); got != want {
			t.Errorf("watchdog %s: %q, want %q", watchdog, got, want)
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
