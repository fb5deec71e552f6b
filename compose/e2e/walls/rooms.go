package walls

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Room is a folder below a service's internal folder, with what it imports of the others.
type Room struct {
	Name string
	// Packages are those of the room, the door among them.
	Packages int
	// Floor is one more than that of the highest room below; rooms of one circle share theirs.
	Floor int
	// Imports are the rooms that this one imports, and Circle those of them that import this one again, by others too.
	Imports, Circle []string
}

// internalOf is the import path of a service's internal folder, with a slash.
func internalOf(service string) string { return services + service + "/internal/" }

// roomOf returns the room of a package of the service, and the rest of the path: empty for the room's door.
func roomOf(service, path string) (room, rest string, ok bool) {
	path, ok = strings.CutPrefix(path, internalOf(service))
	room, rest, _ = strings.Cut(path, "/")
	return room, rest, ok
}

// Rooms returns the rooms of a service, the highest floor first. Imports of tests do not count.
func Rooms(service string, packages []Package) []Room {
	imports, sizes := map[string]map[string]bool{}, map[string]int{}
	for _, p := range packages {
		from, _, ok := roomOf(service, p.ImportPath)
		if !ok {
			continue
		}
		sizes[from]++
		if imports[from] == nil {
			imports[from] = map[string]bool{}
		}
		for _, i := range p.Imports {
			if to, _, ok := roomOf(service, i); ok && to != from {
				imports[from][to] = true
			}
		}
	}
	rooms := make([]Room, 0, len(imports))
	floors := map[string]int{}
	for name, of := range imports {
		r := Room{Name: name, Packages: sizes[name], Imports: slices.Sorted(maps.Keys(of))}
		for _, to := range r.Imports {
			if reaches(imports, to, name) {
				r.Circle = append(r.Circle, to)
			}
		}
		r.Floor = floor(imports, floors, name)
		rooms = append(rooms, r)
	}
	slices.SortFunc(rooms, func(a, b Room) int {
		return cmp.Or(b.Floor-a.Floor, strings.Compare(a.Name, b.Name))
	})
	return rooms
}

// reaches reports whether a room imports another one, by others too.
func reaches(imports map[string]map[string]bool, from, to string) bool {
	seen, next := map[string]bool{}, []string{from}
	for len(next) > 0 {
		room := next[0]
		next = next[1:]
		if room == to {
			return true
		}
		if seen[room] {
			continue
		}
		seen[room] = true
		next = slices.AppendSeq(next, maps.Keys(imports[room]))
	}
	return false
}

func floor(imports map[string]map[string]bool, known map[string]int, room string) int {
	if n, ok := known[room]; ok {
		return n
	}
	known[room] = 1 // while those below are counted: a circle ends here
	highest := 0
	for below := range imports[room] {
		if !reaches(imports, below, room) {
			highest = max(highest, floor(imports, known, below))
		}
	}
	known[room] = highest + 1
	return highest + 1
}

// Picture shows rooms and their imports as text: a floor a paragraph, then what they count.
func Picture(rooms []Room) string {
	var b strings.Builder
	packages, arrows, up, last := 0, 0, 0, 0
	for _, r := range rooms {
		if r.Floor != last {
			fmt.Fprintf(&b, "floor %d\n", r.Floor)
			last = r.Floor
		}
		fmt.Fprintf(&b, "  %-18s %2d packages", r.Name, r.Packages)
		if len(r.Imports) > 0 {
			fmt.Fprintf(&b, "  -> %s", strings.Join(r.Imports, " "))
		}
		if len(r.Circle) > 0 {
			fmt.Fprintf(&b, "  (circle: %s)", strings.Join(r.Circle, " "))
		}
		b.WriteByte('\n')
		packages, arrows, up = packages+r.Packages, arrows+len(r.Imports), up+len(r.Circle)
	}
	fmt.Fprintf(&b, "%d rooms, %d packages, %d arrows, %d of them in circles\n", len(rooms), packages, arrows, up)
	return b.String()
}

// besides are the packages that other rooms may import beside the door of their room, and why they are not in it. The
// room pod has rules, of which other rooms use single ones.
var besides = map[string]string{
	"cluster/informer":       "node watches its own object with it, and services/internal has no client of the API",
	"cluster/podcertificate": "volumes names the places of certificates, and cluster gives it what it asks with",
	"cri/runtime":            "workers, admission and children need the calls without the sockets that the door serves",
	"pod/decide":             "the decision, which mutants test",
	"pod/downward":           "the values of the downward API, in variables and in files",
	"pod/fields":             "the fields that are supported, which the explanation of a pod checks too",
	"pod/status":             "the status of a pod, which evictions and shutdowns override",
	"sources/manifest":       "the rules of manifests, which an explanation and mirror pods need without a source",
}

// Doors returns what enters a room of podsync otherwise than by its door, and what lies beside a door without need.
func Doors(packages []Package) []string {
	const in = "podsync"
	var found []string
	entered := map[string]bool{}
	for _, p := range packages {
		from, _, _ := roomOf(in, p.ImportPath)
		for _, i := range p.Imports {
			to, rest, ok := roomOf(in, i)
			if !ok || to == from || rest == "" {
				continue
			}
			path := to + "/" + rest
			entered[path] = true
			if besides[path] == "" {
				found = append(found, fmt.Sprintf("%s imports %s: a room is entered by its door, %s", p.ImportPath, i,
					internalOf(in)+to))
			}
		}
	}
	for path := range besides {
		if !entered[path] {
			room, rest, _ := strings.Cut(path, "/")
			found = append(found, fmt.Sprintf("no other room imports %s: it belongs into %s/internal/%s", path, room, rest))
		}
	}
	slices.Sort(found)
	return found
}
