package podcgroup

import "testing"

func TestNames(t *testing.T) {
	n := ParseRoot("/", false).Child(RootPart).Child(BurstablePart).Child(PodPrefix + "1234-abcd")
	if got, err := n.Path(false); err != nil || got != "/kubepods/burstable/pod1234-abcd" {
		t.Errorf("cgroupfs has it as %q, %v", got, err)
	}
	want := "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_abcd.slice"
	if got, err := n.Path(true); err != nil || got != want {
		t.Errorf("systemd has it as %q, %v; want %q", got, err, want)
	}
	if got, err := Name(nil).Systemd(); err != nil || got != "/" {
		t.Errorf("the root is %q, %v", got, err)
	}
	for _, bad := range []Name{{"a/b"}, {"a", ""}} {
		if got, err := bad.Systemd(); err == nil {
			t.Errorf("%v became %q, want an error", bad, got)
		}
	}
	if got := ParseRoot("/my_own.slice/my_own-sub.slice", true).Cgroupfs(); got != "/my-own/sub" {
		t.Errorf("a root of systemd's is %q", got)
	}
}

func TestChildDoesNotShare(t *testing.T) {
	parent := append(make(Name, 0, 4), RootPart)
	a, b := parent.Child("a"), parent.Child("b")
	if a[1] != "a" || b[1] != "b" {
		t.Errorf("two children are %v and %v", a, b)
	}
}

func TestUIDOf(t *testing.T) {
	for _, c := range []struct {
		dir     string
		systemd bool
		want    string
	}{
		{"pod1-2", false, "1-2"},
		{"pod", false, ""},
		{"burstable", false, ""},
		{"kubepods-pod1_2.slice", true, "1-2"},
		{"kubepods-burstable-pod1_2.slice", true, "1-2"},
		{"kubepods-burstable.slice", true, ""},
		{"pod1_2", true, ""},
	} {
		if got, ok := UIDOf(c.dir, c.systemd); got != c.want || ok != (c.want != "") {
			t.Errorf("%q (systemd: %v) is of pod %q, %v; want %q", c.dir, c.systemd, got, ok, c.want)
		}
	}
}
