package machine

import (
	"errors"
	"strings"
	"testing"

	"github.com/microlet/microlet/compose/rig/machine/internal/qemu"
)

func TestChoose(t *testing.T) {
	works, broken := qemu.TrialResult{Works: true, Why: "it started"}, qemu.TrialResult{Why: "it hung"}
	for _, tc := range []struct {
		asked Kind
		kvm   qemu.TrialResult
		kind  Kind
		accel qemu.Accel
		says  string
	}{
		{"", works, KindQEMU, qemu.KVM, "QEMU with KVM: KVM works here: it started"},
		{"", broken, KindUML, "", "User-Mode Linux: KVM does not work here: it hung"},
		{"qemu", works, KindQEMU, qemu.KVM, "QEMU with KVM: KVM works here: it started"},
		{"qemu", broken, KindQEMU, qemu.TCG,
			"QEMU without KVM, which is slow: MICROLET_MACHINE=qemu, and KVM does not work here: it hung"},
	} {
		c, err := choose(tc.asked, func() (qemu.TrialResult, error) { return tc.kvm, nil })
		if err != nil || c.kind != tc.kind || c.accel != tc.accel || c.String() != tc.says {
			t.Errorf("%q with %+v: %+v %q, %v, want %s %s %q", tc.asked, tc.kvm, c, c, err, tc.kind, tc.accel, tc.says)
		}
	}
}

func TestChooseTriesKVMOnlyIfItHasToKnow(t *testing.T) {
	tried := errors.New("tried")
	try := func() (qemu.TrialResult, error) { return qemu.TrialResult{}, tried }
	c, err := choose("uml", try)
	if err != nil || c.kind != KindUML || !strings.Contains(c.String(), "MICROLET_MACHINE=uml") {
		t.Errorf("uml: %+v, %v", c, err)
	}
	for _, asked := range []Kind{"", KindQEMU} {
		if _, err := choose(asked, try); !errors.Is(err, tried) {
			t.Errorf("%q: %v, want that of the trial", asked, err)
		}
	}
}

func TestAskedKind(t *testing.T) {
	for value, want := range map[string]Kind{"": "", "uml": KindUML, "qemu": KindQEMU} {
		t.Setenv(KindVariable, value)
		if k, err := AskedKind(); err != nil || k != want {
			t.Errorf("%q: %q, %v, want %q", value, k, err, want)
		}
	}
	for _, value := range []string{"vmware", "QEMU", "qemu "} {
		t.Setenv(KindVariable, value)
		_, err := AskedKind()
		if err == nil ||
			!strings.Contains(err.Error(), "MICROLET_MACHINE="+value+" is no kind of machine: use uml or qemu") {
			t.Errorf("%q: %v, want a word about the kinds that there are", value, err)
		}
	}
}
