package conformance

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// Family is a selection of a suite's specs, and what these need. Its file is compose/conformance/families/NAME.yaml.
type Family struct {
	Name        string `json:"-"`
	Description string `json:"description"`
	Suite       string `json:"suite"`
	// Focus is a regular expression over full names of specs, and Labels a label filter of ginkgo. "" selects all.
	Focus  string `json:"focus"`
	Labels string `json:"labels"`
	Procs  int    `json:"procs"`
	// OneByOne runs the specs one at a time and once. They need more time in all.
	OneByOne bool `json:"oneByOne"`
	// Machine gives the node a machine of its own.
	Machine   bool     `json:"machine"`
	AgentArgs []string `json:"agentArgs"`
	// MicroletArgs have microlet do as the kubelet does, where it has a setting of its own with another default.
	MicroletArgs []string `json:"microletArgs"`
	// Standalone gives the agent no API server. Open lets every caller use its HTTPS API. Both need the suite of the node,
	// on a machine.
	Standalone bool `json:"standalone"`
	Open       bool `json:"open"`
	// Storage adds the specs of the rig's CSI driver, and the images of the suite's mock driver.
	Storage bool `json:"storage"`
	// Then are families that need another node and run after this one.
	Then []string `json:"then"`
}

// The specs that run in parallel, and the time of a suite, where neither the family nor the user says otherwise.
const (
	procsHere       = 16
	procsOnMachine  = 6
	timeout         = 90 * time.Minute
	timeoutOneByOne = 3 * time.Hour
)

// Parallel is how many specs run at the same time.
func (f Family) Parallel() int {
	switch {
	case f.Procs > 0:
		return f.Procs
	case f.OneByOne:
		return 1
	case f.Machine:
		return procsOnMachine
	}
	return procsHere
}

// Timeout is the time that the suite of one agent may take.
func (f Family) Timeout() time.Duration {
	if f.OneByOne {
		return timeoutOneByOne
	}
	return timeout
}

// FindSuite returns the suite that has the specs, where the family runs it.
func (f Family) FindSuite() (Suite, error) {
	suite, err := FindSuite(f.Suite, f.Machine)
	switch {
	case err != nil:
		return suite, err
	case (f.Standalone || f.Open) && suite != NodeOnMachine:
		return suite, errors.New("standalone and open need the suite node on a machine of the node's own")
	case f.Storage && suite != E2E:
		return suite, errors.New("storage needs the suite e2e, on this machine")
	}
	return suite, nil
}

// FindFamilies returns the family of that name, and behind it those that run after it.
func FindFamilies(name string) ([]Family, error) {
	tools, err := locateTools()
	if err != nil {
		return nil, err
	}
	all, err := readFamilies(filepath.Join(dataFolder(tools), "families"))
	if err != nil {
		return nil, err
	}
	f, ok := all[name]
	if !ok {
		return nil, unknown(name, all)
	}
	families := []Family{f}
	for _, next := range f.Then {
		families = append(families, all[next])
	}
	return families, nil
}

func unknown(name string, all map[string]Family) error {
	var list strings.Builder
	for _, known := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&list, "\n  %-16s %s", known, all[known].Description)
	}
	return fmt.Errorf("there is no family %q of specs; use one of:%s", name, list.String())
}

// readFamilies reads each file of the folder.
func readFamilies(folder string) (map[string]Family, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil {
		return nil, err
	}
	all := map[string]Family{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read families of specs: %w", err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		if all[name], err = parseFamily(name, text); err != nil {
			return nil, fmt.Errorf("read families of specs: %s: %w", file, err)
		}
	}
	for name, f := range all {
		for _, next := range f.Then {
			if _, ok := all[next]; !ok {
				return nil, fmt.Errorf("read families of specs: %s: then: there is no family %q", name, next)
			}
		}
	}
	return all, nil
}

func parseFamily(name string, text []byte) (Family, error) {
	f := Family{Name: name, Labels: DefaultLabels}
	if err := yaml.UnmarshalStrict(text, &f); err != nil {
		return f, err
	}
	if f.Description == "" {
		return f, errors.New("it has no description")
	}
	_, err := f.FindSuite()
	return f, err
}
