package up

import (
	"errors"
	"log/slog"
	"maps"
	"strings"
	"testing"

	"k8s.io/component-helpers/node/util/sysctl"
)

// kernel has sysctls. Those without a value do not exist.
type kernel struct {
	values map[string]int
	locked bool
	set    int
}

func (k *kernel) GetSysctl(name string) (int, error) {
	if v, ok := k.values[name]; ok {
		return v, nil
	}
	return -1, errors.New("no such file")
}

func (k *kernel) SetSysctl(name string, value int) error {
	k.set++
	if k.locked {
		return errors.New("read-only file system")
	}
	k.values[name] = value
	return nil
}

func TestTuneKernel(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	fresh := func() *kernel {
		k := &kernel{values: maps.Clone(tunables)}
		k.values[sysctl.KernelPanic], k.values[sysctl.VMOvercommitMemory] = 0, 2
		return k
	}
	k := fresh()
	if err := tuneKernel(k, false, log); err != nil || !maps.Equal(k.values, tunables) || k.set != 2 {
		t.Errorf("%v, %d were set: %v", k.values, k.set, err)
	}
	if err := tuneKernel(k, true, log); err != nil {
		t.Errorf("what is right is refused: %v", err)
	}
	k = fresh()
	k.locked = true
	if err := tuneKernel(k, false, log); err != nil {
		t.Errorf("a container without the right to set them: %v", err)
	}
	k = fresh()
	delete(k.values, sysctl.RootMaxKeys)
	const remedy = "; set it, or turn the field off"
	want := strings.Join([]string{
		"kernel/keys/root_maxkeys cannot be read: no such file",
		"invalid kernel flag: kernel/panic, expected value: 10, actual value: 0" + remedy,
		"invalid kernel flag: vm/overcommit_memory, expected value: 1, actual value: 2" + remedy,
	}, "\nprotectKernelDefaults: ")
	if err := tuneKernel(k, true, log); err == nil || err.Error() != "protectKernelDefaults: "+want || k.set != 0 {
		t.Errorf("%v, %d were set", err, k.set)
	}
	if err := tuneKernel(&kernel{values: map[string]int{}}, false, log); err != nil {
		t.Errorf("a kernel without them: %v", err)
	}
}
