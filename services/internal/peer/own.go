package peer

import (
	"maps"
	"path"
	"regexp"
	"strings"
	"sync"
)

// AgentCgroup and LimitedCgroup begin the names of the cgroups that "microlet up" makes in its own: one for each
// process with a memory limit and, with cgroup v2, one for all the others, since there a cgroup has either processes or
// others below it. A dash and eight hexadecimal digits of the instance follow.
const (
	AgentCgroup   = "microlet-agent"
	LimitedCgroup = "microlet-limited"
)

// ownCgroup is the name of such a cgroup. LimitedCgroup has the process's name at its end too.
var ownCgroup = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:` + AgentCgroup + `|` + LimitedCgroup + `)-[0-9a-f]{8}(?:-[a-z0-9.]+)?$`)
})

// InstanceCgroup is the path without the cgroup that "microlet up" made for the process, if it made one: the cgroup
// that the whole node agent lives in. Only who may write to that cgroup can make one below it.
func InstanceCgroup(at string) string {
	if name := path.Base(at); strings.HasPrefix(name, "microlet-") && ownCgroup().MatchString(name) {
		return path.Dir(at)
	}
	return at
}

// instance are the cgroups of the node agent that the process is a part of.
func (c cgroups) instance() cgroups {
	all := maps.Clone(c)
	for hierarchy, at := range all {
		all[hierarchy] = InstanceCgroup(at)
	}
	return all
}
