package criconfig

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/volumes"
)

// TestNoMoreIsBuiltThanExecveTakes has pods that are small and would make the config of a container large.
func TestNoMoreIsBuiltThanExecveTakes(t *testing.T) {
	b := builder(t)
	b.Objects = &store{configMaps: map[string]map[string]string{
		"ns/large": {"k": strings.Repeat("x", 100_000)}, "ns/file": {"k": strings.Repeat("x", 1<<20)},
	}}
	large := v1.EnvVar{Name: "B", Value: strings.Repeat("x", 100_000)}
	times := func(n int, prefix string, ref string) (all []v1.EnvFromSource) {
		for i := range n {
			all = append(all, v1.EnvFromSource{Prefix: fmt.Sprint(prefix, i),
				ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: ref}}})
		}
		return all
	}
	for name, test := range map[string]struct {
		change func(c *v1.Container)
		want   string
	}{
		"a variable that doubles": {func(c *v1.Container) {
			c.Env = []v1.EnvVar{{Name: "V0", Value: strings.Repeat("x", 32)}}
			for i := 1; i <= 20; i++ {
				c.Env = append(c.Env, v1.EnvVar{Name: fmt.Sprint("V", i), Value: fmt.Sprintf("$(V%d)$(V%d)", i-1, i-1)})
			}
		}, "env V12: 131072 bytes after expansion, at most "},
		"many variables": {func(c *v1.Container) {
			c.Env = []v1.EnvVar{large}
			for i := range 100 {
				c.Env = append(c.Env, v1.EnvVar{Name: fmt.Sprint("V", i), Value: "$(B)"})
			}
		}, "env V19: all arguments and variables up to it take 21"},
		"a literal": {func(c *v1.Container) {
			c.Env = []v1.EnvVar{{Name: "A", Value: strings.Repeat("x", 1<<20)}}
		}, "env A: 1048576 bytes"},
		"a large key": {func(c *v1.Container) { c.EnvFrom = times(1, "F", "file") }, "env F0k: 1048580 bytes with the name"},
		"many keys": {func(c *v1.Container) { c.EnvFrom = times(100, "F", "large") },
			"envFrom, key k: all arguments and variables up to it take 21"},
		"long prefixes": {func(c *v1.Container) { c.EnvFrom = times(100, strings.Repeat("P", 1<<20), "large") },
			"envFrom, key k: all arguments and variables up to it take 22"},
		"an argument": {func(c *v1.Container) {
			c.Env, c.Args = []v1.EnvVar{large}, []string{"a", strings.Repeat("$(B)", 200)}
		}, "args[1]: 20000000 bytes after expansion"},
		"the command": {func(c *v1.Container) {
			c.Env, c.Command = []v1.EnvVar{large}, []string{strings.Repeat("$(B)", 200)}
		}, "command[0]: 20000000 bytes after expansion"},
		"command and arguments together": {func(c *v1.Container) {
			c.Env, c.Command, c.Args = []v1.EnvVar{large}, make([]string, 15), make([]string, 15)
			for i := range 15 {
				c.Command[i], c.Args[i] = "$(B)", "$(B)"
			}
		}, "args[4]: all arguments and variables up to it take 21"},
		"a path": {func(c *v1.Container) {
			c.Env, c.VolumeMounts[0].SubPathExpr = []v1.EnvVar{large}, strings.Repeat("$(B)", 200)
		}, "subPathExpr: 20000000 bytes after expansion, at most 4095"},
	} {
		t.Run(name, func(t *testing.T) {
			p := plainPod()
			test.change(&p.Spec.Containers[0])
			if err := b.Prepare(p); err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := b.Container(t.Context(), p, &p.Spec.Containers[0], ContainerInput{
				PodIPs: []string{"10.1.0.2"}, Volumes: map[string]volumes.Mounted{"token": {HostPath: "/v"}},
			})
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("err = %.200v, want %q", err, test.want)
			}
			if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 8<<20 {
				t.Errorf("%d MiB allocated", allocated>>20)
			}
		})
	}
}

// TestWhatExecveTakesIsBuilt up to the last byte.
func TestWhatExecveTakesIsBuilt(t *testing.T) {
	b := builder(t)
	p := plainPod()
	c := &p.Spec.Containers[0]
	longest := 32*os.Getpagesize() - 1 // MAX_ARG_STRLEN without the zero
	c.Env = []v1.EnvVar{
		{Name: "PART", Value: strings.Repeat("x", 1000)},
		{Name: "B", Value: "$(PART)$(PART)" + strings.Repeat("x", longest-len("B=")-2000)},
	}
	c.Args = []string{"$(B)xx"}
	c.EnvFrom = nil
	if err := b.Prepare(p); err != nil {
		t.Fatal(err)
	}
	config, err := b.Container(t.Context(), p, c, ContainerInput{
		PodIPs: []string{"10.1.0.2"}, Volumes: map[string]volumes.Mounted{"token": {HostPath: "/v"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := len(config.GetArgs()[0]); got != longest {
		t.Errorf("an argument of %d bytes, want %d", got, longest)
	}
}

// TestManyHostAliasesTakeLittle: building the lines must not take the square of their length.
func TestManyHostAliasesTakeLittle(t *testing.T) {
	aliases := make([]v1.HostAlias, 50_000)
	for i := range aliases {
		aliases[i] = v1.HostAlias{IP: "1.1.1.1", Hostnames: []string{"a"}}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	text := podHosts([]string{"192.0.2.1"}, "p", "", aliases)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 32<<20 {
		t.Errorf("%d bytes of hosts took %d MiB", len(text), took>>20)
	}
}
