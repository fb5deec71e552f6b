package kubeletconfig

import "strings"

// nearest returns the name that word was most likely meant to be, or "" if none is near.
func nearest(word string, names []string) string {
	best, bestDistance := "", 1+max(2, len(word)/3)
	for _, name := range names {
		if d := distance(strings.ToLower(word), strings.ToLower(name)); d < bestDistance {
			best, bestDistance = name, d
		}
	}
	return best
}

// distance is Levenshtein's: how many letters to add, drop or change.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
