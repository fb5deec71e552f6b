// Package mounts makes, finds and removes the mounts on and below the folders of a rig. It never touches other mounts.
package mounts
