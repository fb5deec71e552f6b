package walls

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func podsync(t *testing.T) []Package {
	t.Helper()
	packages, err := List(t.Context(), top(t), "./services/podsync/...")
	if err != nil {
		t.Fatal(err)
	}
	return packages
}

func TestRoomsHaveNoCircle(t *testing.T) {
	rooms := Rooms("podsync", podsync(t))
	if len(rooms) < 10 {
		t.Errorf("%d rooms are found", len(rooms))
	}
	for _, r := range rooms {
		if len(r.Circle) > 0 {
			t.Errorf("%s and %s import each other", r.Name, strings.Join(r.Circle, ", "))
		}
	}
	t.Logf("\n%s", Picture(rooms))
}

func TestDoors(t *testing.T) {
	for _, problem := range Doors(podsync(t)) {
		t.Error(problem)
	}
}

// row is the first cell of the table of podsync's rooms in the page about the architecture.
var row = regexp.MustCompile("^\\| \\[`(\\w+)`\\]\\(\\.\\./services/podsync/internal/\\w+\\) \\|")

func TestThePageNamesEveryRoom(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(top(t), "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	var named []string
	for line := range strings.Lines(string(page)) {
		if m := row.FindStringSubmatch(line); m != nil {
			named = append(named, m[1])
		}
	}
	var rooms []string
	for _, r := range Rooms("podsync", podsync(t)) {
		rooms = append(rooms, r.Name)
	}
	slices.Sort(named)
	slices.Sort(rooms)
	if !slices.Equal(named, rooms) {
		t.Errorf("docs/architecture.md names %q, the rooms are %q", named, rooms)
	}
}

func TestRooms(t *testing.T) {
	in := internalOf("podsync")
	packages := []Package{
		{ImportPath: services + "podsync", Imports: []string{in + "a", in + "b/internal/x"}},
		{ImportPath: in + "a", Imports: []string{in + "b", "context"}},
		{ImportPath: in + "a/internal/x", Imports: []string{in + "a", in + "c"}},
		{ImportPath: in + "b", Imports: []string{in + "c/d"}, TestImports: []string{in + "a"}},
		{ImportPath: in + "c/d", Imports: []string{in + "e"}},
		{ImportPath: in + "e", Imports: []string{in + "c/d"}},
	}
	const want = `floor 3
  a                   2 packages  -> b c
floor 2
  b                   1 packages  -> c
floor 1
  c                   1 packages  -> e  (circle: e)
  e                   1 packages  -> c  (circle: c)
4 rooms, 5 packages, 5 arrows, 2 of them in circles
`
	if got := Picture(Rooms("podsync", packages)); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestWhatGoesAroundADoorIsFound(t *testing.T) {
	in := internalOf("podsync")
	packages := []Package{{ImportPath: in + "a", Imports: []string{in + "b", in + "b/c", in + "a/d"}}}
	for path := range besides {
		packages = append(packages, Package{ImportPath: services + "podsync", Imports: []string{in + path}})
	}
	packages = slices.DeleteFunc(packages, func(p Package) bool { return slices.Contains(p.Imports, in+"pod/decide") })
	want := []string{
		in + "a imports " + in + "b/c: a room is entered by its door, " + in + "b",
		"no other room imports pod/decide: it belongs into pod/internal/decide",
	}
	if got := Doors(packages); !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}
