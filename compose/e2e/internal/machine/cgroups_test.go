package machine

import (
	"slices"
	"testing"
)

func TestCgroupFolders(t *testing.T) {
	for _, test := range []struct {
		name, cgroups, mounts string
		want                  []string
	}{
		{"unified", "0::/a/b\n", "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n", []string{"/sys/fs/cgroup/a/b"}},
		{
			"several", "4:cpu,cpuacct:/a\n3:name=systemd:/s\n2:pids:/\n0::/u\n",
			"tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n" +
				"cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0\ncgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0\n",
			[]string{"/sys/fs/cgroup/cpu,cpuacct/a", "/sys/fs/cgroup/systemd/s", "/sys/fs/cgroup/pids"},
		},
	} {
		if got := cgroupFolders(test.cgroups, test.mounts); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}
